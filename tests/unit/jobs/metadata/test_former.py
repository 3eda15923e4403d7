"""Tests of merging rebuilt metadata with older metadata: topic ids and the ends of queues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.jobs.rebuild_metadata import facts_of, kinds
from tests.kit.tier_builder import BROKER, START_MS, TierBuilder, message
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.metadata import index
from tieredstore.jobs.metadata.former import FormerEnds, FormerMetadata
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.options import RebuildMetadataOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.scan.location import METADATA_FILE, locate

LATE_MS = START_MS + 3_600_000


def load(state: Path) -> DefaultMetadataStore:
    metadata = DefaultMetadataStore(state / METADATA_FILE, BROKER)
    metadata.load()
    return metadata


def rebuild(builder: TierBuilder, state: Path, former: FormerMetadata) -> dict[str, Any]:
    run = JobRun("rebuild-metadata", LocalRunner(1), Journal(None, {}))
    location = locate(builder.built.url)
    return run_rebuild_metadata(run, location, state, RebuildMetadataOptions(), former=former)


def ids_of(state: Path) -> dict[str, int]:
    return {name: value[0] for name, value in facts_of(state, BROKER)["topics"].items()}


def make_tier(root: Path, *topics: str) -> TierBuilder:
    builder = TierBuilder(root)
    for topic in topics:
        builder.queue(topic, 0, [message(topic, 0, n) for n in range(6)])
    return builder


def test_a_topic_that_the_index_does_not_name_keeps_its_id(tmp_path: Path) -> None:
    builder = make_tier(tmp_path, "orders", "refunds")
    former = FormerMetadata(LATE_MS, {"orders": 41, "refunds": 17, "gone": 90})
    report = rebuild(builder, tmp_path / "made", former)
    assert ids_of(tmp_path / "made") == {"orders": 41, "refunds": 17}
    assert kinds(report) == []
    assert load(tmp_path / "made").add_topic("new").topic_id == 91


def test_a_topic_that_was_made_again_since_has_the_id_of_its_items(tmp_path: Path) -> None:
    builder = make_tier(tmp_path, "orders", "refunds")
    builder.index()
    rebuild(builder, tmp_path / "made", FormerMetadata(START_MS - 1, {"orders": 1, "refunds": 40}))
    assert ids_of(tmp_path / "made") == {"orders": 0, "refunds": 1}


def test_items_are_read_only_of_index_files_that_end_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = make_tier(tmp_path, "orders")
    builder.index()
    read: list[object] = []
    read_items = index.read_items

    def note(*args: Any) -> Any:
        read.append(args)
        return read_items(*args)

    monkeypatch.setattr(index, "read_items", note)
    former = FormerMetadata.of(load(builder.built.state), BROKER, LATE_MS)
    report = rebuild(builder, tmp_path / "made", former)
    assert read == []
    assert (report["index_segments"], kinds(report)) == (1, [])
    assert facts_of(tmp_path / "made", BROKER) == facts_of(builder.built.state, BROKER)
    rebuild(builder, tmp_path / "again", FormerMetadata(START_MS - 1, former.topic_ids))
    assert len(read) == 1


def test_a_queue_without_segments_goes_on_where_it_ended(tmp_path: Path) -> None:
    builder = make_tier(tmp_path, "orders", "expired")
    former = FormerMetadata.of(load(builder.built.state), BROKER, LATE_MS)
    end = former.queues[QueueKey("expired", 0)]
    shutil.rmtree(next((tmp_path / "tier").rglob("expired")))
    rebuild(builder, tmp_path / "made", former)
    metadata = load(tmp_path / "made")
    assert FormerMetadata.of(metadata, BROKER, 0).queues == former.queues
    assert [(e.base_offset, e.size) for e in metadata.segments(f"{BROKER}/expired/0")] == [
        (end.commit_log, 0),
        (end.consume_queue, 0),
    ]


def test_what_the_tier_has_wins_over_an_earlier_end(tmp_path: Path) -> None:
    builder = make_tier(tmp_path, "orders")
    former = FormerMetadata(LATE_MS, {"orders": 0}, {QueueKey("orders", 0): FormerEnds(10, 20)})
    rebuild(builder, tmp_path / "made", former)
    assert facts_of(tmp_path / "made", BROKER) == facts_of(builder.built.state, BROKER)
