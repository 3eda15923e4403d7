"""Tests of exports with columns from JSON bodies, in every format and with several readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.kit.jobs.export import FORMATS, Export
from tests.kit.tier_builder import TierBuilder
from tieredstore import jobs
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.bodies.schema import parse_body_schema
from tieredstore.jobs.exporting.request import Format, OnUnfit
from tieredstore.message.encoding import Message

SCHEMA = (
    "id BIGINT, at TIMESTAMP, price DECIMAL(10,2), lines ARRAY<STRUCT<sku: STRING, count: INT>>,"
    " attrs MAP<STRING,STRING>, city STRUCT<name: STRING>"
)
BODIES: list[bytes] = [
    json.dumps(
        {
            "id": number,
            "at": f"2026-11-22T00:00:0{number}Z",
            "price": number + 0.25,
            "lines": [{"sku": f"s{number}", "count": number}],
            "attrs": {"n": str(number)},
            "city": {"name": f"c{number}"},
        }
    ).encode()
    for number in range(4)
] + [b"no json", b'{"id":"5"}', b"{}"]
IDS = [0, 1, 2, 3, None, None, None]
NAMES = ["c0", "c1", "c2", "c3", None, None, None]


class Source:
    """Stand-in for a tier, with the members that `Export` needs."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture
def source(tmp_path: Path) -> Source:
    builder = TierBuilder(tmp_path / "source", messages_per_segment=100)
    builder.queue("orders", 0, [Message.create("orders", body, queue_id=0) for body in BODIES])
    builder.built.metadata.flush()
    return Source(builder.built.url)


def read(exported: Export) -> list[pa.Table]:
    """Read the target with several readers."""
    match exported.form:
        case Format.PARQUET:
            path = f"{exported.target}/*/*/*.parquet"
            with duckdb.connect() as connection:
                return [
                    connection.sql(f"from read_parquet('{path}')").to_arrow_table(),
                    pl.read_parquet(path).to_arrow(),
                ]
        case Format.DELTA:
            return [exported.table(), pl.read_delta(str(exported.target)).to_arrow()]
        case Format.ICEBERG:
            catalog = load_catalog("test", **exported.catalog)
            found = pl.scan_iceberg(catalog.load_table("lake.messages")).collect().to_arrow()
            catalog.close()
            return [exported.table(), found]


@pytest.mark.parametrize("form", FORMATS)
def test_members_are_columns_for_every_reader(
    form: Format, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    exported = Export(tmp_path / "out", form, source, columns=("queue_offset",))  # type: ignore[arg-type]
    report = exported.run(body_schema=parse_body_schema(SCHEMA))
    assert (report["rows"], report["unfit_bodies"], report["corrupt_messages"]) == (7, 2, 0)
    assert "orders/0, queue offset 4: the body does not fit the schema: JSON" in report["unfit"][0]
    assert "queue offset 5: " in report["unfit"][1]
    for table in read(exported):
        rows: list[dict[str, Any]] = table.sort_by("queue_offset").to_pylist()
        assert [row["id"] for row in rows] == IDS
        assert [(row["city"] or {}).get("name") for row in rows] == NAMES
        assert [str(row["price"]) for row in rows[:2]] == ["0.25", "1.25"]
        assert rows[1]["lines"] == [{"sku": "s1", "count": 1}]
        assert rows[2]["at"].isoformat()[:19] == "2026-11-22T00:00:02"
        assert "body" not in rows[0]


def test_a_body_that_does_not_fit_ends_it_on_request(source: Source, tmp_path: Path) -> None:
    exported = Export(tmp_path / "out", Format.PARQUET, source)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=r"orders/0, queue offset 4: the body does not fit") as caught:
        exported.run(body_schema=parse_body_schema(SCHEMA), on_unfit=OnUnfit.FAIL)
    assert (caught.value.topic, caught.value.queue_id, caught.value.offset) == ("orders", 0, 4)
    assert exported.run(body_schema=parse_body_schema(SCHEMA))["rows"] == 7


@pytest.mark.parametrize("form", FORMATS)
def test_another_schema_is_refused(form: Format, source: Source, tmp_path: Path) -> None:
    exported = Export(tmp_path / "out", form, source)  # type: ignore[arg-type]
    exported.run(body_schema=parse_body_schema("id BIGINT"))
    with pytest.raises(Invalid, match=r"another body_schema: expected id BIGINT, found id INT"):
        exported.run(body_schema=parse_body_schema("id INT"))
    with pytest.raises(Invalid, match="columns"):
        exported.run(body_schema=parse_body_schema("id BIGINT, more STRING"))
    with pytest.raises(Invalid, match="columns"):
        exported.run()
    assert exported.run(body_schema=parse_body_schema(" `id`  LONG "))["rows"] == 0


def test_the_call_takes_a_text_or_a_file(source: Source, tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id BIGINT,\n  city STRUCT<name: STRING>\n")
    for schema in ("id BIGINT, city STRUCT<name: STRING>", tmp_path / "orders.ddl"):
        report = jobs.export(
            source.url, tmp_path / "out", body_schema=schema, body_prefix="j_", work=tmp_path
        )
    assert report["rows"] == 0
    found = pl.read_parquet(f"{tmp_path}/out/*/*/*.parquet")
    assert sorted(name for name in found.columns if name.startswith("j_")) == ["j_city", "j_id"]
    with pytest.raises(Invalid, match=r"body schema .*missing\.ddl: .*No such file"):
        jobs.export(source.url, tmp_path / "out", body_schema=tmp_path / "missing.ddl")
