"""`rebuild metadata` runs its tasks on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.kit.jobs.rebuild_metadata import facts_of
from tests.kit.spark.cluster import Cluster
from tests.kit.tier_builder import small_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(spark: SparkSession, url: str, state: Path, *, exact: bool) -> dict[str, Any]:
    from tieredstore.jobs.journal import Journal
    from tieredstore.jobs.metadata import job
    from tieredstore.jobs.options import RebuildMetadataOptions
    from tieredstore.jobs.run import JobRun
    from tieredstore.scan.location import locate
    from tieredstore.spark.runner import SparkRunner

    run = JobRun("rebuild-metadata", SparkRunner(spark), Journal(None, {}))
    with patch.object(job, "_TASK_QUEUES", 1):  # a task for each queue
        return job.run_rebuild_metadata(
            run, locate(url), state, RebuildMetadataOptions(exact_times=exact)
        )


def test_a_cluster_makes_what_this_process_makes(cluster: Cluster, tmp_path: Path) -> None:
    built = small_tier(tmp_path)
    for exact in (False, True):
        state = tmp_path / f"made-{exact}"
        report = cluster.call(rebuild, built.url, state, exact=exact)
        assert [(stage["stage"], stage["tasks"]) for stage in report["stages"]] == [
            ("queues", 3),
            ("index", 1),
        ]
        assert report["runner"].startswith("spark ")
        assert report["findings"] == []
        assert facts_of(state) == facts_of(built.state)
