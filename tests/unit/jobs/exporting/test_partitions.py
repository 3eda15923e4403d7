"""Tests of partitions other than topic and day, as read by other libraries."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import mmh3
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import FORMATS, Export, Place, places_of
from tieredstore import jobs
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.buckets import bucket_numbers
from tieredstore.jobs.exporting.partition import Partition, PartitionBy, parse_partition_by
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write

CHOICES = ("none", "topic,hour", "day,bucket(2, queue_id)")

TASK_BYTES = 400_000


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> GrowingTier:
    """A tier with two topics. One has messages in two hours and on two days, starting at
    22:13:20."""
    tier = GrowingTier(tmp_path_factory.mktemp("source"))
    tier.append("orders", 0, 6500, body_bytes=10)
    tier.append("orders", 1, 5)
    tier.append("a|b", 0, 3)
    return tier


def by_polars(exported: Export) -> Counter[Place]:
    match exported.form:
        case Format.PARQUET:
            found = pl.scan_parquet(
                f"{exported.target}/**/*.parquet",
                hive_partitioning=True,
                hive_schema={
                    name: {"day": pl.Date, "topic": pl.String}.get(name, pl.Int32)
                    for name in hive_columns(exported)
                },
            ).collect()
        case Format.DELTA:
            found = pl.read_delta(str(exported.target))
        case Format.ICEBERG:
            catalog = load_catalog("test", **exported.catalog)
            found = pl.scan_iceberg(catalog.load_table("lake.messages")).collect()
            catalog.close()
    return Counter(found.select("topic", "queue_id", "queue_offset").rows())


def hive_columns(exported: Export) -> list[str]:
    return [part.split("=")[0] for part in files_of(exported)[0].parts if "=" in part]


def by_duckdb(exported: Export) -> Counter[Place]:
    with duckdb.connect() as connection:
        match exported.form:
            case Format.PARQUET:
                types = "hive_types={topic: varchar}, " if "topic" in hive_columns(exported) else ""
                source = (
                    f"read_parquet('{exported.target}/**/*.parquet', {types}hive_partitioning=true)"
                )
            case _:
                connection.register("found", exported.table())
                source = "found"
        rows = connection.sql(f"select topic, queue_id, queue_offset from {source}").fetchall()
    return Counter(rows)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_reader_finds_every_row(
    form: Format, choice: str, tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    exported, by = Export(tmp_path / "out", form, tier), parse_partition_by(choice)
    report = exported.run(partition_by=by, task_bytes=TASK_BYTES)
    assert report["rows"] == 6508
    expected = places_of(tier)
    assert exported.places() == by_duckdb(exported) == by_polars(exported) == expected
    assert exported.run(partition_by=by, task_bytes=TASK_BYTES)["rows"] == 0


def files_of(exported: Export) -> list[Path]:
    return [path for path in exported.root.rglob("*.parquet") if "_tieredstore" not in path.parts]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_has_one_hour(form: Format, tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "out", form, tier)
    exported.run(partition_by=parse_partition_by("hour"), task_bytes=TASK_BYTES)
    hours = [
        {(START_MS + time // 1000 - START_MS) // 3_600_000 for time in times}
        for times in (
            pq.read_table(path, partitioning=None)["store_timestamp"].cast(pa.int64()).to_pylist()
            for path in files_of(exported)
        )
    ]
    assert len(hours) == len(set.union(*hours)) == 3
    if form is Format.PARQUET:
        folders = [path.parent.relative_to(exported.target) for path in files_of(exported)]
        assert sorted(map(str, folders)) == [
            "day=2023-11-14/hour=22",
            "day=2023-11-14/hour=23",
            "day=2023-11-15/hour=0",
        ]
    if form is Format.DELTA:
        delta = DeltaTable(str(exported.target))
        assert delta.metadata().partition_columns == ["day", "hour"]
        found = delta.to_pyarrow_table(filters=[("hour", "=", 23)])
        assert set(found["hour"].to_pylist()) == {23}
    if form is Format.ICEBERG:
        catalog = load_catalog("test", **exported.catalog)
        table = catalog.load_table("lake.messages")
        assert [str(field.transform) for field in table.spec().fields] == ["hour"]
        until = "store_timestamp < '2023-11-14T23:00:00+00:00'"
        assert len(list(table.scan(until).plan_files())) == 1
        catalog.close()


def test_buckets_of_iceberg_are_those_that_it_looks_for(tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "out", Format.ICEBERG, tier)
    exported.run(partition_by=parse_partition_by("bucket(8)"), task_bytes=TASK_BYTES)
    catalog = load_catalog("test", **exported.catalog)
    table = catalog.load_table("lake.messages")
    assert len(list(table.scan().plan_files())) == 8
    for path in files_of(exported):
        key = pq.read_table(path, partitioning=None)["msg_id"][0].as_py()
        scan = table.scan(f"msg_id = '{key}'")
        assert [Path(task.file.file_path).name for task in scan.plan_files()] == [path.name]
        assert scan.to_arrow().num_rows > 0
    catalog.close()


@given(
    st.lists(st.none() | st.text(max_size=12)),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
)
def test_buckets_are_those_of_the_reference(
    texts: list[str | None], numbers: list[int | None]
) -> None:
    def bucket(data: bytes | None) -> int:
        return -1 if data is None else (mmh3.hash(data) & 0x7FFFFFFF) % 16

    found = bucket_numbers(pa.array(["x", *texts], pa.string()).slice(1), 16, -1)
    assert found.tolist() == [bucket(None if t is None else t.encode()) for t in texts]
    found = bucket_numbers(pa.array(numbers, pa.int64()), 16, -1)
    assert found.tolist() == [bucket(None if n is None else struct.pack("<q", n)) for n in numbers]


def test_a_run_that_was_killed_goes_on(
    tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tieredstore.jobs.exporting import job

    class Killed(BaseException):
        pass

    def killing(task: WriteTask) -> WriteOutcome:
        if task.number == 2:
            raise Killed
        return write(task)

    for form in FORMATS:
        exported, by = (
            Export(tmp_path / form.value, form, tier),
            parse_partition_by("hour,bucket(2)"),
        )
        with monkeypatch.context() as patch:
            patch.setattr(job, "write", killing)
            with pytest.raises(Killed):
                exported.run(journal="a", partition_by=by, task_bytes=TASK_BYTES)
        report = exported.run(journal="a", partition_by=by, task_bytes=TASK_BYTES)
        assert report["stages"][0]["resumed"] == 2
        assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_another_partitioning_is_refused(form: Format, tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "out", form, tier)
    exported.run(task_bytes=TASK_BYTES)
    with pytest.raises(Invalid, match=r"partition|\['topic', 'day'\]"):
        exported.run(partition_by=parse_partition_by("hour"), task_bytes=TASK_BYTES)
    other = Export(tmp_path / "other", form, tier)
    other.run(partition_by=parse_partition_by("none"), task_bytes=TASK_BYTES)
    with pytest.raises(Invalid, match=r"another partition_by: expected|partitioned otherwise"):
        other.run(task_bytes=TASK_BYTES)
    assert other.run(partition_by=parse_partition_by("none"), task_bytes=TASK_BYTES)["rows"] == 0


@pytest.mark.parametrize(("choice", "version"), [("topic,day", 1), ("hour", 2)])
def test_earlier_versions_refuse_what_they_do_not_know(
    choice: str, version: int, tmp_path: Path, tier: GrowingTier
) -> None:
    """The state of an export with new partitions has a version above 1, which earlier versions of
    this project reject."""
    exported = Export(tmp_path / "out", Format.PARQUET, tier)
    exported.run(partition_by=parse_partition_by(choice), task_bytes=TASK_BYTES)
    [commit] = (exported.target / "_tieredstore/commits").glob("*.json")
    state = json.loads(commit.read_bytes())["state"]
    assert state["version"] == version
    assert ("partition_by" in state["identity"]) == (version == 2)


def test_a_table_that_is_cut_finer_is_refused(tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "out", Format.ICEBERG, tier)
    exported.run(task_bytes=TASK_BYTES)
    catalog = load_catalog("test", **exported.catalog)
    table = catalog.load_table("lake.messages")
    with table.update_spec() as update:
        update.add_field("msg_id", "bucket[4]")
    catalog.close()
    with pytest.raises(
        Invalid, match=r"partitioned by bucket\[4\] of msg_id, files are cut by topic"
    ):
        exported.run(task_bytes=TASK_BYTES)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("topic,day", PartitionBy()),
        (["topic", "day"], PartitionBy()),
        ("none", PartitionBy(topic=False, day=False)),
        ((), PartitionBy(topic=False, day=False)),
        (" hour , bucket( 4 ,queue_id ) ", PartitionBy(False, True, True, 4, "queue_id")),
        ("bucket(16)", PartitionBy(False, False, False, 16, "msg_id")),
    ],
)
def test_choices(given: Any, expected: PartitionBy) -> None:
    assert parse_partition_by(given) == expected
    assert parse_partition_by(expected.names) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("month", "expected topic, day, hour, bucket.*found 'month'"),
        ("topic,none", "found 'none'"),
        ("bucket(0)", "expected 1 to 256 buckets, found 0"),
        ("bucket(1000)", "expected 1 to 256 buckets, found 1000"),
        ("bucket(4, body)", "a column of text or numbers.*found 'body'"),
        ("bucket(4, nothing)", "found 'nothing'"),
        ("bucket(x)", r"found 'bucket\(x\)'"),
        ("topic,,day", "character 7"),
    ],
)
def test_other_choices_are_invalid(given: str, message: str, tier: GrowingTier) -> None:
    with pytest.raises(Invalid, match=message):
        jobs.export(tier.url, "nowhere", partition_by=given)


def test_folders() -> None:
    by = parse_partition_by("topic,hour,bucket(4)")
    assert by.folder(Partition("a|b", 0, 7, 3)) == "topic=a%7Cb/day=1970-01-01/hour=7/bucket=3"
    null = "__HIVE_DEFAULT_PARTITION__"
    assert by.folder(Partition("t", None, None, 0)) == f"topic=t/day={null}/hour={null}/bucket=0"
    assert parse_partition_by("none").folder(Partition()) == ""
