"""`rebuild index` and `compact index` run their tasks on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.kit.jobs.index import items_of
from tests.kit.spark.cluster import Cluster
from tests.kit.tier_builder import BROKER, START_MS, BuiltTier, small_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.jobs.runner import Runner


def index_jobs(runner: Runner, url: str, state: Path, staging: str | None) -> list[dict[str, Any]]:
    """Rebuild the index, add a small file to it, and compact the index."""
    from tieredstore.jobs.index import rebuild
    from tieredstore.jobs.index.compact import run_compact_index
    from tieredstore.jobs.index.rebuild import run_rebuild_index
    from tieredstore.jobs.journal import Journal
    from tieredstore.jobs.options import CompactIndexOptions, RebuildIndexOptions
    from tieredstore.jobs.run import JobRun
    from tieredstore.scan.location import locate

    capacity = {
        "tieredStoreIndexFileMaxHashSlotNum": "8",
        "tieredStoreIndexFileMaxIndexNum": "33",
    }
    source = locate(url, broker=BROKER, state=state, properties=capacity)

    def run() -> JobRun:
        return JobRun("index", runner, Journal(None, {}))

    with patch.object(rebuild, "TASK_BYTES", 2500):
        options = RebuildIndexOptions(force=True, staging=staging)
        made = run_rebuild_index(run(), source, options)
        options = RebuildIndexOptions(until=START_MS + 3000, staging=staging)
        added = run_rebuild_index(run(), source, options)
    return [made, added, run_compact_index(run(), source, CompactIndexOptions(staging=staging))]


def on_spark(spark: SparkSession, url: str, state: Path, staging: str) -> list[dict[str, Any]]:
    from tieredstore.spark.runner import SparkRunner

    return index_jobs(SparkRunner(spark), url, state, staging)


def index_of(built: BuiltTier) -> list[bytes]:
    paths = (built.root / "tier").rglob(f"{BROKER}/rmq_sys_INDEX/0/INDEX/[!.]*")
    return [path.read_bytes() for path in sorted(paths, key=lambda path: path.name[-20:])]


def test_a_cluster_makes_what_this_process_makes(cluster: Cluster, tmp_path: Path) -> None:
    from tieredstore.jobs.runner import LocalRunner

    there, here = small_tier(tmp_path / "there"), small_tier(tmp_path / "here")
    staging = tmp_path / "staging"
    staging.mkdir()
    found = cluster.call(on_spark, there.url, there.state, staging.as_uri())
    alone = index_jobs(LocalRunner(1), here.url, here.state, None)
    assert [report["files"] for report in found] == [report["files"] for report in alone]
    assert found[0]["stages"][0]["tasks"] > 2
    assert found[0]["runner"].startswith("spark ")
    assert index_of(there) == index_of(here)
    assert [sum(items_of(data).values()) for data in index_of(there)] == [32, 12 + 4]
    assert there.damage(with_state=True) == []
    assert not [path for path in staging.rglob("*") if path.is_file()]
