"""`rebuild metadata` recreates the lost metadata of tiers that Java wrote. Only facts that are
recorded nowhere else are missing (`docs/jobs.md`)."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import public_a as kit
from tests.kit.jobs.rebuild_metadata import facts_of
from tests.kit.oracle import Oracle
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.options import RebuildMetadataOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.scan.location import locate


def rebuild(tier: Path, state: Path, **options: Any) -> dict[str, Any]:
    run = JobRun("rebuild-metadata", LocalRunner(1), Journal(None, {}))
    return run_rebuild_metadata(
        run, locate(f"file://{tier}"), state, RebuildMetadataOptions(**options)
    )


@pytest.mark.parametrize("exact", [False, True])
def test_public_a_but_for_what_only_the_lost_file_knew(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path, exact: bool
) -> None:
    shutil.copytree(public_a / "tiered", tmp_path / "tiered")
    report = rebuild(tmp_path / "tiered", tmp_path / "made", exact_times=exact)
    assert report["findings"] == []
    assert report["messages"] == 1759

    lost = facts_of(public_a / "store", "labBroker")
    made = facts_of(tmp_path / "made", "labBroker")

    assert lost["topics"].pop("pub_empty")[3] == {}, "no queue: it has no data in the tier"
    assert made["topics"] == lost["topics"]
    # Java takes a store time out of IPv6 addresses (D14).
    times = [m["storeTimestamp"] for m in public_a_manifest["messages"] if m["topic"] == "pub_v6"]
    for name in ("COMMIT_LOG@0", "CONSUME_QUEUE@0"):
        status, size, _, _, seal = lost["segments"][f"labBroker/pub_v6/0/{name}"]
        right = (status, size, min(times), max(times), seal)
        lost["segments"][f"labBroker/pub_v6/0/{name}"] = right
    # The first messages that this segment names have expired.
    expired = "labBroker/pub_expire/0/CONSUME_QUEUE@6000"
    status, size, _, end, seal = lost["segments"][expired]
    begin = lost["segments"]["labBroker/pub_expire/0/COMMIT_LOG@1197128"][2]
    lost["segments"][expired] = (status, size, begin, end, seal)
    assert made["segments"] == lost["segments"]


@pytest.mark.parametrize("version", ["java-5.3.3", "java-5.5.0"])
def test_the_golden_tiers(golden: Path, tmp_path: Path, version: str) -> None:
    [config] = (golden / version).rglob("tieredStoreMetadata.json")
    [cluster] = {path.parents[4] for path in (golden / version).rglob("*/COMMIT_LOG/[!.]*")}
    shutil.copytree(cluster, tmp_path / "tiered" / cluster.name)
    report = rebuild(tmp_path / "tiered", tmp_path / "made")
    lost, made = facts_of(config.parents[1]), facts_of(tmp_path / "made")
    assert made["segments"] == lost["segments"]
    assert lost["topics"]["TopicA"][3] == {3: ("broker-a", 100, 105)}, "by a call of its test"
    # The index beside is not of these messages, so that its id is taken for another topic's.
    assert [finding["kind"] for finding in report["findings"]] == ["topic-id-assigned"]
    assert made["topics"] == {"TopicA": (1, 0, -1, {3: ("broker-a", -1, -1)})}


@pytest.fixture(scope="module")
def tier(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.JavaTier]:
    """Java's tier, opened with the rebuilt metadata."""
    root = tmp_path_factory.mktemp("rebuilt")
    shutil.copytree(public_a / "tiered", root / "lost" / "tiered")
    shutil.copy(public_a / "broker.conf", root / "lost" / "broker.conf")
    rebuild(root / "lost" / "tiered", root / "lost" / "store")
    tier = kit.JavaTier(root / "lost", root / "opened")
    yield tier
    tier.close()


def test_every_message_is_read(tier: kit.JavaTier, public_a_manifest: dict[str, Any]) -> None:
    wanted = [m for m in public_a_manifest["messages"] if m.get("tiered")]
    for m in wanted:
        result = tier.fetcher.get_message("group", m["topic"], m["queueId"], m["queueOffset"], 1)
        [message] = result.messages
        assert hashlib.sha256(message.raw).hexdigest() == m["tiered"]["rawSHA256"]
    assert len(wanted) == 1759


def test_every_query_is_answered_right(
    tier: kit.JavaTier, public_a_manifest: dict[str, Any]
) -> None:
    oracle, low = Oracle(public_a_manifest), kit.JAVA_TIER_LOW
    queries = public_a_manifest["queries"]
    gets = [row for row in queries["getMessage"] if row["store"] == "broker"]
    assert kit.wrong_gets(gets, oracle, tier.fetcher.get_message, low=low) == []
    times = queries["offsetByTime"]
    assert kit.wrong_times(times, oracle, tier.fetcher.offset_by_time, low=low) == []
    keys = queries["byKey"]
    assert kit.wrong_queries(keys, oracle, tier.fetcher.query_message, low=low) == []
    assert min(len(gets), len(times), len(keys)) > 200
