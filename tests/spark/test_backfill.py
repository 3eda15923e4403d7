"""The job `backfill` runs its tasks on two executors, and reads a Spark DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.jobs.backfill import contents, damage, found, messages, new_run, tier_at
from tests.kit.spark.cluster import Cluster
from tieredstore.jobs.backfilling.frames import backfill_frame
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = BackfillOptions(segment_bytes=4000)


def on_spark(spark: SparkSession, journal: Path | None = None) -> JobRun:
    from tieredstore.spark.runner import SparkRunner

    return JobRun("backfill", SparkRunner(spark), Journal(journal, {"job": "backfill"}))


def run_there(spark: SparkSession, table: str, root: Path) -> dict[str, Any]:
    return run_backfill(on_spark(spark), tier_at(root), table, OPTIONS, task_bytes=12_000)


def frame_there(spark: SparkSession, table: str, root: Path) -> dict[str, Any]:
    """Return a DataFrame that Spark has read. Its rows are in no particular order."""
    frame = spark.read.parquet(table).repartition(3, "body")
    return backfill_frame(on_spark(spark), tier_at(root), frame, root / "staging", OPTIONS)


def rows() -> pa.Table:
    both = pa.concat_tables([messages(90, first=2), messages(60, queue_id=1)])
    return both.take([(row * 67) % 150 for row in range(150)])


def test_executors_write_the_bytes_that_one_process_writes(
    cluster: Cluster, tmp_path: Path
) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(rows(), table, row_group_size=20)
    report = cluster.call(run_there, str(table), tmp_path / "cluster")
    stages = {stage["stage"]: stage["tasks"] for stage in report["stages"]}
    assert stages["write"] > 2
    assert report["runner"].endswith("local-cluster[2,1,1024]")
    alone = tier_at(tmp_path / "alone")
    run_backfill(new_run(), alone, str(table), OPTIONS)
    assert contents(tier_at(tmp_path / "cluster")) == contents(alone)
    assert damage(tier_at(tmp_path / "cluster")) == []


def test_a_dataframe_of_spark_becomes_a_tier(cluster: Cluster, tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(rows(), table)
    (tmp_path / "made").mkdir()
    report = cluster.call(frame_there, str(table), tmp_path / "made")
    assert report["messages"] == 150
    alone = tmp_path / "alone"
    run_backfill(new_run(), tier_at(alone), str(table), OPTIONS)
    names = ["topic", "queue_id", "queue_offset", "body", "keys", "msg_id", "store_timestamp"]
    made = found(tmp_path / "made").select(names)
    assert made.equals(found(alone).select(names))
    assert damage(tier_at(tmp_path / "made")) == []
