"""Other libraries read all rows and values of a target, with and without filters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

import tieredstore
from tests.kit.jobs.export import Export
from tests.kit.tier_builder import START_MS, TierBuilder, message
from tieredstore.jobs.exporting.partition import PartitionBy
from tieredstore.jobs.exporting.request import Format

DAY_MS = 86_400_000
MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS
YEAR_10000_MS = 253_402_300_800_000
FAR_MS = [
    YEAR_10000_MS - 1,
    YEAR_10000_MS,
    YEAR_10000_MS * 100,
    9_000_000_000_000_000,
    9_223_372_036_854_775,
    9_223_372_036_854_776,  # no µs of 64 bits: null
    -9_223_372_036_854_775,  # its hour has no number in Iceberg
]
TIMES_MS = [
    0,
    MIDNIGHT_MS - 1,
    MIDNIGHT_MS,
    MIDNIGHT_MS + DAY_MS - 1,
    MIDNIGHT_MS + DAY_MS,
    *FAR_MS,
]
COLUMNS = ("topic", "queue_id", "queue_offset", "store_timestamp", "born_timestamp", "tags", "keys",
           "body", "msg_id")  # fmt: skip
Row = tuple[object, ...]


@dataclass
class BuiltSource:
    """Stand-in for a tier, with the members that `Export` needs."""

    url: str


@pytest.fixture(autouse=True)
def plan_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pyiceberg plan the scan. Otherwise Polars would warn if its own Iceberg planner is not
    installed."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def source(tmp_path: Path) -> BuiltSource:
    """A tier with two topics. One needs an escaped name and has a wide range of store times. The
    other has birth times in microseconds."""
    builder = TierBuilder(tmp_path / "source", messages_per_segment=100)
    builder._times = itertools.chain(TIMES_MS, itertools.count(START_MS, 1000))
    builder.queue("%RETRY%grp|x", 0, [message("%RETRY%grp|x", 0, n) for n in range(len(TIMES_MS))])
    born = [START_MS, START_MS * 1000, START_MS + 1000]
    builder.queue(
        "plain", 0, [message("plain", 0, n, born_timestamp_ms=time) for n, time in enumerate(born)]
    )
    builder.built.metadata.flush()
    return BuiltSource(builder.built.url)


def exported_as(form: Format, source: BuiltSource, root: Path, **changes: Any) -> Export:
    exported = Export(root / form.value, form, source, columns=COLUMNS)  # type: ignore[arg-type]
    exported.run(**changes)
    return exported


def plain(table: pa.Table) -> list[Row]:
    """Return sorted rows with times in µs, because Python's datetime ends in the year 9999."""
    columns = []
    for name in COLUMNS:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        columns.append([tuple(v) if isinstance(v, list) else v for v in column.to_pylist()])
    return sorted(zip(*columns, strict=True), key=lambda row: row[:3])


def rows_of(source: BuiltSource) -> list[Row]:
    return plain(tieredstore.open(source.url).scan(columns=list(COLUMNS)).to_arrow())


def iceberg_table(exported: Export) -> Iterator[Any]:
    with closing(load_catalog("test", **exported.catalog)) as catalog:
        yield catalog.load_table("lake.messages")


def query_duckdb(query: str, **tables: Any) -> pa.Table:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.sql(query)
        assert found is not None
        return found.to_arrow_table()


def by_duckdb(exported: Export) -> pa.Table:
    return query_duckdb(
        f"select * from read_parquet('{exported.target}/**/*.parquet', hive_partitioning=true, "
        "hive_types={topic: varchar, day: varchar})"
    )


def by_polars_hive(exported: Export) -> pa.Table:
    found = pl.read_parquet(f"{exported.target}/topic=*/**/*.parquet", hive_partitioning=True)
    return found.to_arrow()


def by_deltalake(exported: Export) -> pa.Table:
    return deltalake.DeltaTable(str(exported.target)).to_pyarrow_table()


def by_delta_query(exported: Export) -> pa.Table:
    table = deltalake.DeltaTable(str(exported.target))
    query = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    return pa.table(query.read_all())


def by_polars_delta(exported: Export) -> pa.Table:
    return pl.read_delta(str(exported.target)).to_arrow()


def by_pyiceberg(exported: Export) -> pa.Table:
    [table] = [table.scan().to_arrow() for table in iceberg_table(exported)]
    return table


def by_polars_iceberg(exported: Export) -> pa.Table:
    [table] = [pl.scan_iceberg(table).collect().to_arrow() for table in iceberg_table(exported)]
    return table


READERS: dict[Callable[[Export], pa.Table], Format] = {
    by_duckdb: Format.PARQUET,
    by_polars_hive: Format.PARQUET,
    by_deltalake: Format.DELTA,
    by_delta_query: Format.DELTA,
    by_polars_delta: Format.DELTA,
    by_pyiceberg: Format.ICEBERG,
    by_polars_iceberg: Format.ICEBERG,
}


@pytest.mark.parametrize(("read", "form"), READERS.items(), ids=lambda part: str(part))
def test_every_reader_finds_every_value(
    read: Callable[[Export], pa.Table], form: Format, source: BuiltSource, tmp_path: Path
) -> None:
    assert plain(read(exported_as(form, source, tmp_path))) == rows_of(source)


def test_polars_finds_the_topic_of_delta_by_a_filter(source: BuiltSource, tmp_path: Path) -> None:
    exported = exported_as(Format.DELTA, source, tmp_path)
    frame = pl.scan_delta(str(exported.target))
    for topic, count in (("plain", 3), ("%RETRY%grp|x", len(TIMES_MS))):
        assert frame.filter(pl.col("topic") == topic).collect().height == count


BOUNDS_MS = [0, MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS, YEAR_10000_MS - 1000]


def since(rows: list[Row], bound_ms: int) -> int:
    return sum(row[3] is not None and row[3] >= bound_ms * 1000 for row in rows)  # type: ignore[operator]


@pytest.mark.parametrize("bound_ms", BOUNDS_MS)
def test_no_reader_of_delta_skips_far_rows(
    bound_ms: int, source: BuiltSource, tmp_path: Path
) -> None:
    exported = exported_as(Format.DELTA, source, tmp_path)
    bound = datetime.fromtimestamp(bound_ms / 1000, UTC)
    wanted = since(rows_of(source), bound_ms)
    assert wanted >= 3
    frame = pl.scan_delta(str(exported.target)).filter(pl.col("store_timestamp") >= bound)
    assert frame.select("queue_offset").collect().height == wanted
    table = deltalake.DeltaTable(str(exported.target))
    later = ds.field("store_timestamp") >= bound
    assert table.to_pyarrow_dataset().to_table(["topic"], filter=later).num_rows == wanted
    if bound.year > 2262:
        return  # DataFusion's literals are of nanoseconds
    text = bound.strftime("%Y-%m-%dT%H:%M:%SZ")
    query = f"select count(*) as n from t where store_timestamp >= timestamp '{text}'"
    counted = deltalake.QueryBuilder().register("t", table).execute(query).read_all()
    assert pa.table(counted)["n"].to_pylist() == [wanted]


def test_no_reader_of_delta_skips_rows_with_far_times_of_birth(
    source: BuiltSource, tmp_path: Path
) -> None:
    exported = exported_as(Format.DELTA, source, tmp_path)
    table = deltalake.DeltaTable(str(exported.target))
    dataset = table.to_pyarrow_dataset()
    for year, count in ((2000, len(TIMES_MS) + 3), (2100, 1)):
        bound = datetime(year, 1, 1, tzinfo=UTC)
        later = ds.field("born_timestamp") >= bound
        assert dataset.to_table(["topic"], filter=later).num_rows == count
        frame = pl.scan_delta(table).filter(pl.col("born_timestamp") >= bound)
        assert frame.select("queue_offset").collect().height == count
    query = "select * from dataset where born_timestamp > timestamptz '50000-01-01 00:00:00+00'"
    assert query_duckdb(query, dataset=dataset).num_rows == 1


def test_columns_without_values_hide_no_rows_of_delta(tmp_path: Path) -> None:
    """Filters on empty columns of a Delta table do not hide rows. deltalake treats missing bounds
    of a column as an empty range."""
    builder = TierBuilder(tmp_path / "source")
    builder.queue("tagged", 0, [message("tagged", 0, n) for n in range(3)])
    builder.queue("bare", 0, [message("bare", 0, n, tags=None) for n in range(4)])
    builder.built.metadata.flush()
    exported = exported_as(Format.DELTA, BuiltSource(builder.built.url), tmp_path)
    dataset = deltalake.DeltaTable(str(exported.target)).to_pyarrow_dataset()
    for condition, count in (
        (ds.field("tags").is_null(), 4),
        (ds.field("queue_offset") >= 0, 7),
        (ds.field("tags") >= "", 3),
    ):
        assert dataset.to_table(["topic"], filter=condition).num_rows == count


@pytest.mark.parametrize("bound_ms", BOUNDS_MS)
def test_no_reader_of_iceberg_skips_far_rows(
    bound_ms: int, source: BuiltSource, tmp_path: Path
) -> None:
    exported = exported_as(Format.ICEBERG, source, tmp_path)
    bound = datetime.fromtimestamp(bound_ms / 1000, UTC)
    wanted = since(rows_of(source), bound_ms)
    later = f"store_timestamp >= '{bound.isoformat()}'"
    for table in iceberg_table(exported):
        assert table.scan(row_filter=later).to_arrow().num_rows == wanted
        assert table.scan(row_filter=later).count() == wanted
        frame = pl.scan_iceberg(table).filter(pl.col("store_timestamp") >= bound)
        assert frame.select("queue_offset").collect().height == wanted


def test_iceberg_takes_a_time_of_birth_in_microseconds(source: BuiltSource, tmp_path: Path) -> None:
    exported = exported_as(Format.ICEBERG, source, tmp_path)
    for table in iceberg_table(exported):
        found = table.scan(row_filter="topic == 'plain'").to_arrow()
        born = found["born_timestamp"].cast(pa.int64()).to_pylist()
        assert sorted(born) == [START_MS * 1000, (START_MS + 1000) * 1000, START_MS * 1_000_000]
        assert table.scan(row_filter=f"born_timestamp > '{datetime(9999, 1, 1, tzinfo=UTC).isoformat()}'").count() == 1  # fmt: skip  # noqa: E501


def test_bounds_of_columns_are_those_of_the_rows(source: BuiltSource, tmp_path: Path) -> None:
    """The column bounds of an Iceberg table are correct, both in the manifest and in the files."""
    exported = exported_as(Format.ICEBERG, source, tmp_path)
    for table in iceberg_table(exported):
        ids = {column.field_id: column for column in table.schema().fields}
        entries = [task.file for task in table.scan().plan_files()]
        assert len(entries) == 12  # 10 days and none, and the far time of birth has a file
        for entry in entries:
            rows = pq.read_table(entry.file_path.removeprefix("file://"))
            assert entry.record_count == rows.num_rows
            assert entry.split_offsets
            for number, nulls in entry.null_value_counts.items():
                values = rows[ids[number].name]
                assert values.null_count == nulls
                if nulls == rows.num_rows:
                    assert number not in entry.lower_bounds
            for number, raw in entry.lower_bounds.items():
                values = rows[ids[number].name]
                if pa.types.is_string(values.type):
                    least, most = pc.min_max(values).as_py().values()
                    assert least.encode().startswith(raw)
                    assert entry.upper_bounds[number].decode() >= most
                    continue
                numbers = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
                least, most = pc.min_max(numbers).as_py().values()
                assert int.from_bytes(raw, "little", signed=True) == least
                assert int.from_bytes(entry.upper_bounds[number], "little", signed=True) == most


@pytest.mark.parametrize(
    "by",
    [
        PartitionBy(topic=False, day=False),
        PartitionBy(topic=False),
        PartitionBy(day=False, buckets=4),
        PartitionBy(hour=True),
    ],
    ids=lambda by: "-".join(by.names) or "none",
)
def test_no_partition_hides_rows_from_a_reader(
    by: PartitionBy, source: BuiltSource, tmp_path: Path
) -> None:
    rows = rows_of(source)
    delta = exported_as(Format.DELTA, source, tmp_path, partition_by=by)
    iceberg = exported_as(Format.ICEBERG, source, tmp_path, partition_by=by)
    assert plain(by_deltalake(delta)) == rows
    assert plain(by_polars_delta(delta)) == rows
    assert plain(by_pyiceberg(iceberg)) == rows
    dataset = deltalake.DeltaTable(str(delta.target)).to_pyarrow_dataset()
    for bound_ms in BOUNDS_MS:
        bound = datetime.fromtimestamp(bound_ms / 1000, UTC)
        wanted = since(rows, bound_ms)
        later = ds.field("store_timestamp") >= bound
        assert dataset.to_table(["queue_offset"], filter=later).num_rows == wanted
        frame = pl.scan_delta(str(delta.target)).filter(pl.col("store_timestamp") >= bound)
        assert frame.select("queue_offset").collect().height == wanted
        for table in iceberg_table(iceberg):
            text = f"store_timestamp >= '{bound.isoformat()}'"
            assert table.scan(row_filter=text).to_arrow().num_rows == wanted
