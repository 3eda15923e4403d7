"""The command line exports a tier that Java wrote. DuckDB reads the messages of the manifest from
it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.kit.command_line import one_line, tieredstore

FORMATS = ("parquet", "delta", "iceberg")


@pytest.fixture(scope="module")
def expected(public_a_manifest: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    return {
        (m["topic"], m["queueId"], m["queueOffset"]): m
        for m in public_a_manifest["messages"]
        if m.get("tiered")
    }


def target_of(form: str, root: Path) -> list[str]:
    if form != "iceberg":
        return ["--format", form, "--to", str(root / "target")]
    options = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}/warehouse",
    }
    given = ["--format", form, "--catalog", "lake", "--table", "rocketmq.messages"]
    return [*given, *(f"--target-option={key}={value}" for key, value in options.items())]


def relation(form: str, root: Path, connection: duckdb.DuckDBPyConnection) -> Any:
    """Return the target as a relation of DuckDB. Tables are read through Arrow."""
    if form == "parquet":
        return connection.read_parquet(f"{root}/target/**/*.parquet", hive_partitioning=True)
    if form == "delta":
        from deltalake import DeltaTable

        return connection.from_arrow(DeltaTable(str(root / "target")).to_pyarrow_table())
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{root}/catalog.db",
        warehouse=f"file://{root}/warehouse",
    )
    table = catalog.load_table("rocketmq.messages").scan().to_arrow()
    catalog.close()
    return connection.from_arrow(table)


@pytest.mark.parametrize("form", FORMATS)
def test_duckdb_finds_what_the_manifest_says(
    form: str, public_a: Path, expected: dict[tuple[str, int, int], dict[str, Any]], tmp_path: Path
) -> None:
    tier = ("--tier", f"file://{public_a / 'tiered'}", "--work", tmp_path / "work", "--workers", 1)
    target = target_of(form, tmp_path)
    ran = tieredstore("export", *tier, *target, "--quiet", "--output", "json", "--properties",
                      "--report", tmp_path / "report.json")  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.record["rows"] == len(expected) == 1759
    assert json.loads((tmp_path / "report.json").read_bytes()) == ran.record
    with duckdb.connect() as connection:
        messages = relation(form, tmp_path, connection)
        counts = messages.aggregate("topic, count(*)", "topic").fetchall()
        assert dict(counts) == Counter(topic for topic, _, _ in expected)
        rows = messages.project(
            "topic, queue_id, queue_offset, sha256(body), epoch_ms(store_timestamp), tags,"
            "properties, msg_id"
        ).fetchall()
    found = {row[:3]: row[3:] for row in rows}
    assert found.keys() == expected.keys()
    for place, (digest, store_ms, tags, properties, msg_id) in found.items():
        m = expected[place]
        assert digest == m["bodySHA256"]
        assert store_ms == m["storeTimestamp"]
        assert tags == m["properties"].get("TAGS")
        assert dict(properties) == m["properties"]
        assert msg_id == m["properties"].get("UNIQ_KEY", msg_id)
    again = tieredstore("export", *tier, *target, "--quiet", "--output", "json", "--properties")
    assert (again.code, again.record["rows"], again.record["commit"]) == (0, 0, None)


def test_what_the_command_line_refuses(public_a: Path, tmp_path: Path) -> None:
    tier = ("--tier", f"file://{public_a / 'tiered'}", "--work", tmp_path / "work", "--quiet")
    target = ("--format", "parquet", "--to", tmp_path / "target")
    for arguments, text in (
        (("--topics", "pubn"), "no topic 'pubn' in the tier. Did you mean"),
        (("--columns", "bodi"), "no column 'bodi' in a message. Did you mean body"),
        (("--target-option", "x=1"), "no target option 'x'"),
        (("--target-option", "x"), "expected KEY=VALUE"),
        (("--spark-conf", "a=b"), "--spark-conf needs --spark"),
    ):
        ran = tieredstore("export", *tier, *target, *arguments)
        assert ran.code == 2
        assert text in one_line(ran)
    ran = tieredstore("export", *tier, "--format", "iceberg", "--catalog", "nowhere",
                      "--table", "a.b")  # fmt: skip
    assert ran.code == 2
    assert "catalog 'nowhere'" in one_line(ran)
    assert "Its settings are those of --target-option" in one_line(ran)


def test_topics_by_pattern(public_a: Path, tmp_path: Path) -> None:
    """An export selects topics by shell patterns, like other verbs. The digest of the exported
    bodies equals that of `cat`."""
    tier = ("--tier", f"file://{public_a / 'tiered'}")
    ran = tieredstore("export", *tier, "--work", tmp_path / "work", "--format", "parquet",
                      "--to", tmp_path / "target", "--topics", "pub_v*", "--quiet",
                      "--columns", "queue_id,queue_offset,body", "--workers", 1)  # fmt: skip
    assert ran.code == 0, ran.err
    assert "rows" in ran.out
    with duckdb.connect() as connection:
        rows = relation("parquet", tmp_path, connection)
        names = set(rows.columns)
        found = rows.project("topic, queue_id, queue_offset, body").fetchall()
    assert names == {"topic", "day", "store_timestamp", "queue_id", "queue_offset", "body"}
    shown = tieredstore("cat", *tier, "--topic", "pub_v6", "--body", "sha256", "--output", "ndjson")
    assert {(row["queue_id"], row["queue_offset"], row["body"]) for row in shown.rows} == {
        (queue, offset, hashlib.sha256(body).hexdigest())
        for topic, queue, offset, body in found
        if topic == "pub_v6"
    }
