"""Exports run their tasks on a cluster, in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tests.kit.spark.cluster import Cluster
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.location import TierLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def on_spark(spark: SparkSession, source: TierLocation, request: ExportRequest) -> dict[str, Any]:
    from tieredstore.jobs.exporting.job import run_export
    from tieredstore.jobs.journal import Journal
    from tieredstore.jobs.run import JobRun
    from tieredstore.spark.runner import SparkRunner

    run = JobRun("export", SparkRunner(spark), Journal(None, {}))
    return run_export(run, source, request, task_bytes=20_000)


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path / "source")
    for queue_id in range(3):
        tier.append("orders", queue_id, 200)
    tier.append("other", 0, 20)
    return tier


@pytest.mark.parametrize("form", FORMATS)
def test_tasks_on_executors(
    form: Format, cluster: Cluster, tier: GrowingTier, tmp_path: Path
) -> None:
    exported = Export(tmp_path / "exported", form, tier)
    report = cluster.call(on_spark, exported.source, exported.request())
    assert report["rows"] == 620
    assert report["stages"][0]["tasks"] > 5
    assert "local-cluster[2,1,1024]" in report["runner"]
    assert report["files"] == 2
    assert exported.places() == places_of(tier)
    tier.append("orders", 1, 7)
    assert cluster.call(on_spark, exported.source, exported.request())["rows"] == 7
    assert exported.places() == places_of(tier)


def test_damage_met_by_an_executor(cluster: Cluster, tier: GrowingTier, tmp_path: Path) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    [log] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    with log.open("r+b") as file:
        file.seek(120)
        file.write(b"\0\0")
    with pytest.raises(Corrupt, match=r"orders/0/COMMIT_LOG@0 byte \d+"):
        cluster.call(on_spark, exported.source, exported.request())
    request = exported.request(on_damage=OnDamage.SKIP)
    report = cluster.call(on_spark, exported.source, request)
    assert (report["rows"], report["corrupt_messages"]) == (619, 1)


def test_duplicates_are_found_by_executors(
    cluster: Cluster, tier: GrowingTier, tmp_path: Path
) -> None:
    """Executors find duplicates of a key across two queues, and across two runs."""
    tier.append("paid", 0, 4, uniq_keys=["a", "b", "a", "c"])
    tier.append("paid", 1, 2, uniq_keys=["c", "d"])
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    request = exported.request(dedup_window_ms=60_000)
    report = cluster.call(on_spark, exported.source, request)
    assert "local-cluster[2,1,1024]" in report["runner"]
    assert report["duplicates"] == 2
    tier.append("paid", 1, 2, uniq_keys=["e", "d"])
    report = cluster.call(on_spark, exported.source, request)
    assert (report["rows"], report["duplicates"]) == (1, 1)
    found = exported.places()
    assert set(found.values()) == {1}
    assert len([place for place in found if place[0] == "paid"]) == 5
