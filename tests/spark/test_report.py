"""The job `report` gives the same result on a cluster as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow.parquet as pq

from tests.kit.spark.cluster import Cluster
from tests.kit.tier_builder import START_MS, small_tier
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import ReportOptions
from tieredstore.jobs.reporting import job
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.scan.location import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def report_with(runner: Runner, url: str, to: str) -> dict[str, Any]:
    options = ReportOptions(as_of=START_MS + 60_000)
    with Journal(None, {}) as journal, mock.patch.object(job, "TASK_BYTES", 1500):
        run = JobRun("report", runner, journal)
        found = job.run_report(run, locate(url), Path(to), options)
    assert run.stages[0].tasks > 2
    return found


def report_on_spark(spark: SparkSession, url: str, to: str) -> dict[str, Any]:
    from tieredstore.spark.runner import SparkRunner

    return report_with(SparkRunner(spark), url, to)


def test_a_report_made_by_a_cluster_is_the_same(cluster: Cluster, tmp_path: Path) -> None:
    url = small_tier(tmp_path / "t").url
    found = cluster.call(report_on_spark, url, str(tmp_path / "cluster"))
    alone = report_with(LocalRunner(1), url, str(tmp_path / "alone"))
    of_run = {"runner", "started_ms", "seconds", "stages", "to"}
    assert [found[name] for name in alone if name not in of_run] == [
        alone[name] for name in alone if name not in of_run
    ]
    for name in ("topics", "queues", "values", "ages"):
        tables = [pq.read_table(tmp_path / at / f"{name}.parquet") for at in ("cluster", "alone")]
        assert tables[0].equals(tables[1])
