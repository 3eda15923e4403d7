"""Each part of the project runs once on Spark. scripts/nightly also runs these tests on the oldest
and the newest Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.growing_tier import GrowingTier
from tieredstore.spark import enable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 30)
    tier.append("orders", 1, 10)
    return tier


def version(spark: SparkSession) -> tuple[int, ...]:
    return tuple(map(int, spark.version.split(".")[:2]))


def test_batch(spark: SparkSession, tier: GrowingTier) -> None:
    enable(spark)
    frame = spark.read.format("rocketmq_tiered").option("subscribe", "orders").load(tier.url)
    found = frame.groupBy("queue_id").count().orderBy("queue_id").collect()
    assert [tuple(row) for row in found] == [(0, 30), (1, 10)]
    [row] = frame.where("queue_id = 1 AND queue_offset = 3").collect()
    assert (row.msg_id, row.tags, row.keys) == (
        f"{'0001':>24}00000003".replace(" ", "A"),
        "T0",
        ["KEY-3"],
    )
    assert bytes(row.body).startswith(b"orders/1/3 ")


def test_push_down(spark: SparkSession, tier: GrowingTier) -> None:
    enable(spark)
    options = {"subscribe": "orders", "maxPartitionBytes": "1k", "pushDownFilters": "true"}
    frame = spark.read.format("rocketmq_tiered").options(**options).load(tier.url)
    partitions = frame.rdd.getNumPartitions()
    few = frame.where("queue_id = 1 AND queue_offset >= 4 AND queue_offset < 7")
    assert few.rdd.getNumPartitions() < partitions
    assert sorted(row.queue_offset for row in few.collect()) == [4, 5, 6]


def test_several_queries_over_one_frame(spark: SparkSession, tier: GrowingTier) -> None:
    """Several queries over one DataFrame return correct rows, although Spark uses one plan for all
    of them: the plan of the query that pushed its filters down last."""
    enable(spark)
    frame = spark.read.format("rocketmq_tiered").option("subscribe", "orders").load(tier.url)
    first, second = frame.where("queue_id = 0"), frame.where("queue_id = 1")
    assert [second.count(), frame.count(), first.union(second).count()] == [10, 40, 40]


def started(
    spark: SparkSession, tier: GrowingTier, options: dict[str, str], folder: Path
) -> StreamingQuery:
    stream = spark.readStream.format("rocketmq_tiered").options(**options).load(tier.url)
    return (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "sink"))
    )


def test_a_stream_that_is_started_again(
    spark: SparkSession, tier: GrowingTier, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    enable(spark)
    options = {"subscribe": "orders", "startingOffsets": "earliest"}
    limited = {**options, "maxOffsetsPerTrigger": "8"}
    if has_limits := version(spark) >= (4, 2):
        options = limited
    else:
        with pytest.raises(StreamingQueryException, match=r"needs Spark 4\.2"):
            started(spark, tier, limited, tmp_path / "limited").awaitTermination(120)
    batches = []
    for _ in range(2):
        query = started(spark, tier, options, tmp_path)
        assert query.awaitTermination(120)
        batches.append(
            len([progress for progress in query.recentProgress if progress.numInputRows])
        )
        tier.append("orders", 0, 5)
    rows = spark.read.parquet(str(tmp_path / "sink")).select("queue_id", "queue_offset").collect()
    expected = [(0, offset) for offset in range(35)] + [(1, offset) for offset in range(10)]
    assert sorted(map(tuple, rows)) == expected
    assert batches == ([5, 1] if has_limits else [1, 1])


def test_a_job(spark: SparkSession, tier: GrowingTier) -> None:
    from tieredstore.jobs.journal import Journal
    from tieredstore.jobs.options import VerifyOptions
    from tieredstore.jobs.run import JobRun
    from tieredstore.jobs.verifying import run_verify
    from tieredstore.scan.location import locate
    from tieredstore.spark.runner import SparkRunner

    with Journal(None, {"job": "verify"}) as journal:
        run = JobRun("verify", SparkRunner(spark), journal)
        report = run_verify(run, locate(tier.url), VerifyOptions(index=False), task_bytes=1000)
    assert report["messages"] == 40
    assert str(report["runner"]).startswith(f"spark {spark.version}")
