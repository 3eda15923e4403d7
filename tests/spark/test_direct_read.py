"""`tieredstore.spark.read` returns the same rows as the data source, without using it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.growing_tier import GrowingTier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Invalid
from tieredstore.spark import read
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.source import RocketmqTieredDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(RocketmqTieredDataSource)
    return spark


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    names = [name for name in frame.columns if name != "properties"]
    found = [
        (*(row[name] for name in names), sorted((row.asDict().get("properties") or {}).items()))
        for row in frame.collect()
    ]
    return sorted(found, key=repr)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"includeProperties": "true", "minPartitions": "8"},
        {"columns": "queue_offset,body,keys"},
        {"columns": "topic,queue_id,queue_offset"},
        {"tags": "TagA || TagB"},
        {"startingOffsets": "earliest", "maxPartitionBytes": "64k"},
        {"endingTimestamp": "2001-01-01T00:00:00Z"},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_rows_and_schema_are_those_of_the_source(
    registered: SparkSession, public_a: Path, options: dict[str, str]
) -> None:
    url = f"file://{public_a / 'tiered'}"
    given = {"subscribePattern": ".*", **options}
    by_source = registered.read.format("rocketmq_tiered").options(**given).load(url)
    ours = read(registered, url, **given)
    assert ours.schema == by_source.schema
    expected = rows(by_source)
    assert rows(ours) == expected
    assert bool(expected) == ("endingTimestamp" not in options)


def test_it_needs_no_source_in_the_session(spark: SparkSession, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 4)
    plan = read(spark, tier.url, subscribe="orders")._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert "BatchScan" not in plan


def test_values_may_be_those_of_python(spark: SparkSession, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 4)
    tier.append("orders", 1, 5)
    found = read(
        spark,
        tier.url,
        subscribe=["orders"],
        startingOffsets={"orders": {"broker-a": {"1": 3}}},
        columns=("queue_id", "queue_offset"),
        checkBodies=False,
        minPartitions=3,
    )
    assert sorted(map(tuple, found.collect())) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (1, 4)]


def test_it_is_one_snapshot_for_all_queries(spark: SparkSession, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 4)
    found = read(spark, tier.url, subscribe="orders")
    tier.append("orders", 0, 3)
    assert (found.count(), found.union(found).count()) == (4, 8)
    assert found.where("queue_offset > 1").join(found, "queue_offset").count() == 2
    assert read(spark, tier.url, subscribe="orders").count() == 7


def test_damage_ends_the_query_or_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 4)
    log = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[0]
    data = bytearray(log.read_bytes())
    data[data.index(b"orders/0/2 ")] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(Exception, match="body CRC does not fit"):
        read(spark, tier.url, subscribe="orders").collect()
    left = read(spark, tier.url, subscribe="orders", onDamage="skip")
    assert sorted(row.queue_offset for row in left.collect()) == [0, 1, 3]


@pytest.mark.parametrize(
    ("columns", "partitions"),
    [("queue_id,body", 8), ("queue_id,queue_offset", 1), ("queue_id", 1)],
)
def test_partitions_are_cut_by_the_bytes_that_are_read(
    tmp_path: Path, columns: str, partitions: int
) -> None:
    tier = GrowingTier(tmp_path)
    for queue_id in range(4):
        tier.append("orders", queue_id, 8, body_bytes=10_000)
    options = parse_options(
        {"path": tier.url, "subscribe": "orders", "columns": columns, "maxPartitionBytes": "45k"}
    )
    shape = Shape.of(spark_schema(options.columns), options.columns)
    assert len(TieredBatchReader(options, shape).partitions()) == partitions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pushDownFilters": True}, "pushDownFilters: means nothing"),
        ({"maxOffsetsPerTrigger": 5}, "maxOffsetsPerTrigger: means nothing"),
        ({"subscrib": "orders"}, "did you mean subscribe"),
        ({"path": "/elsewhere"}, "path: given twice"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid, match=message):
        read(spark, f"file://{tmp_path}", **{"subscribe": "orders", **options})
