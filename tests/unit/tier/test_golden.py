"""Queues written by Java brokers can be opened, extended and reopened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.tier.flat import batch, config, existing, read_messages
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.reading import run

QUEUE = QueueKey("TopicA", 3)


@pytest.fixture(params=["java-5.3.3", "java-5.5.0"])
def java(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Path:
    shutil.copytree(golden / request.param, tmp_path / "copy")
    return tmp_path / "copy"


def opened(root: Path) -> FlatFileStore:
    metadata = DefaultMetadataStore(
        root / "config" / "tieredStoreMetadata.json", "broker-a", ManualClock()
    )
    metadata.load()
    provider = PosixProvider(root / "tier", "DefaultCluster", fsync=False)
    store = FlatFileStore(config(commit_log_max_size_bytes=400), provider, metadata, ManualClock())
    store.load()
    return store


def test_a_java_queue_is_read_and_extended(java: Path) -> None:
    file = existing(opened(java), QUEUE)
    assert (file.consume_queue_min_offset, file.consume_queue_commit_offset) == (100, 105)
    assert [segment.base_offset for segment in file.commit_log.segments] == [0, 270, 540]
    found = read_messages(file, 100, 10)
    assert [m.queue_offset for m in found] == [100, 101, 102, 103, 104]
    assert [m.physical_offset for m in found] == [0, 135, 270, 405, 540]
    times = [m.store_timestamp_ms for m in found]
    for offset, time_ms in enumerate(times, 100):
        assert run(file.offset_by_time(time_ms, BoundaryType.LOWER)) == offset
        assert run(file.offset_by_time(time_ms, BoundaryType.UPPER)) == offset
    file.append_batch(*batch(105, 4, queue_id=3))
    assert file.commit()
    again = existing(opened(java), QUEUE)
    assert len(read_messages(again, 100, 10)) == 9
    assert again.topic_id == 0


def test_opening_and_reading_writes_nothing(java: Path) -> None:
    before = {path: path.read_bytes() for path in java.rglob("*") if path.is_file()}
    read_messages(existing(opened(java), QUEUE), 100, 10)
    after = {path: path.read_bytes() for path in java.rglob("*") if path.is_file()}
    assert after == before
