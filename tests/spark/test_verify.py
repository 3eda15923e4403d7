"""The job `verify` gives the same result on a cluster as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.spark.cluster import Cluster
from tests.kit.tier_builder import flip, small_tier
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import VerifyOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.verifying import run_verify
from tieredstore.scan.location import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def report_with(runner: Runner, url: str, state: str) -> dict[str, Any]:
    with Journal(None, {}) as journal:
        run = JobRun("verify", runner, journal)
        return run_verify(run, locate(url, state=Path(state)), VerifyOptions(), task_bytes=600)


def report_on_spark(spark: SparkSession, url: str, state: str) -> dict[str, Any]:
    from tieredstore.spark.runner import SparkRunner

    return report_with(SparkRunner(spark), url, state)


def test_a_verification_by_a_cluster_is_the_same(cluster: Cluster, tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    logs = sorted((tier.root / "tier").rglob("COMMIT_LOG/[!.]*"))
    for path in logs:
        flip(path, 100)
    flip(logs[0], 4)
    arguments = (tier.url, str(tier.state))
    found = cluster.call(report_on_spark, *arguments)
    alone = report_with(LocalRunner(), *arguments)
    assert "spark" in found["runner"]
    tasks = [{one["stage"]: one["tasks"] for one in which["stages"]} for which in (found, alone)]
    assert tasks[0] == tasks[1]
    assert tasks[0]["messages"] > 5
    for name in ("messages", "message_bytes", "index_items", "damage", "kinds", "findings"):
        assert found[name] == alone[name], name
    assert found["damage"] >= len(logs)
