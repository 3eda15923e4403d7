"""A scan writes the metadata file once for all of its new segments. Java finds new segments only in
this file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from tests.kit.faulty_files import FaultyFiles
from tests.kit.tier.flat import BROKER, T0, ListSource, Tier, bodies, config, existing
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentId,
    SegmentListing,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchStatus

KEYS = [QueueKey("T", number) for number in range(8)]
SETTINGS = {
    "commit_log_max_size_bytes": 1_000,
    "consume_queue_max_size_bytes": 200,
    "commit_log_rolling_minimum_size_bytes": 1,
    "group_commit_count": 4,
}
TABLES = ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable")


class ReadByJava(WrapperProvider):
    """Checks before each write that the metadata file contains the segment. Ends the process before
    write number `crash_at`."""

    def __init__(self, path: Path) -> None:
        super().__init__(MemoryProvider())
        self.path = path
        self.writes = 0
        self.crash_at = 0

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        return CheckedSegment(super().open(id, listing), self)

    def check(self, id: SegmentId) -> None:
        self.writes += 1
        if self.writes == self.crash_at:
            raise SimulatedCrash
        tables = orjson.loads(self.path.read_bytes())
        assert str(id.base_offset) in tables[TABLES[int(id.type)]][id.path], id


class CheckedSegment(WrapperSegment):
    def __init__(self, inner: FileSegment, provider: ReadByJava) -> None:
        super().__init__(inner)
        self.provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self.provider.check(self.id)
        return super().write(position, buffers)


class Rig:
    def __init__(self, root: Path) -> None:
        self.path = root / "tieredStoreMetadata.json"
        self.files = FaultyFiles()
        self.provider = ReadByJava(self.path)
        self.source = ListSource()
        self.open()

    def open(self) -> None:
        metadata = DefaultMetadataStore(self.path, BROKER, ManualClock(T0), operations=self.files)
        metadata.load()
        tier = Tier(self.provider, metadata, settings=dict(SETTINGS))
        self.store = tier.store()
        self.clock = tier.clock
        settings = config(**SETTINGS)
        self.dispatcher = MessageStoreDispatcher(
            settings, self.source, self.store, None, TopicFilter(settings), tier.clock
        )

    def put(self, first: int, count: int) -> None:
        for key in KEYS:
            self.source.put(key, first, count)

    def scan(self) -> int:
        """Run a scan. Return the number of times it wrote the metadata file."""
        self.files.log.clear()
        self.dispatcher.scan(force=True)
        return self.files.log.count("write_synced")

    def check_all(self, count: int) -> None:
        for key in KEYS:
            found = bodies(existing(self.store, key))
            assert [offset for offset, _ in found] == list(range(count))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def count_segments(rig: Rig) -> int:
    return max(len(existing(rig.store, key).consume_queue.segments) for key in KEYS)


def test_the_rolls_of_all_queues_of_a_scan_are_one_write(rig: Rig) -> None:
    rig.put(0, 3)
    assert rig.scan() == 2  # the first version is written to its backup too
    rig.put(3, 9)  # units for another segment
    before = rig.provider.writes
    rolls = rig.scan()
    rig.check_all(12)
    logs = max(len(existing(rig.store, key).commit_log.segments) for key in KEYS)
    assert count_segments(rig) == 2
    assert 1 <= rolls <= (logs - 1) + 1  # as one queue alone needs, not times eight
    assert rig.provider.writes > before
    rig.open()
    rig.check_all(12)


def test_a_queue_that_needs_many_segments_gets_them(rig: Rig) -> None:
    rig.source.put(KEYS[0], 0, 100)
    rig.scan()
    found = bodies(existing(rig.store, KEYS[0]))
    assert [offset for offset, _ in found] == list(range(100))
    assert len(existing(rig.store, KEYS[0]).consume_queue.segments) == 10


def test_a_log_that_is_due_is_rolled_with_the_others(rig: Rig) -> None:
    rig.put(0, 2)
    rig.scan()
    rig.clock.advance(100 * 3_600_000)
    rig.put(2, 1)
    assert rig.scan() == 1
    assert all(len(existing(rig.store, key).commit_log.segments) == 2 for key in KEYS)
    rig.check_all(3)


def test_p02_nothing_is_written_before_the_file_tells_of_it(rig: Rig) -> None:
    """A new segment is in the metadata file before anything is written to it, even if the process
    is killed."""
    rig.put(0, 9)
    rig.scan()
    kills = 0
    for _ in range(200):
        if kills == 0:
            rig.put(9, 9)
        rig.provider.writes, rig.provider.crash_at = 0, kills + 1
        try:
            rig.dispatcher.scan(force=True)
        except SimulatedCrash:
            kills += 1
            rig.open()
        else:
            break
    assert kills >= 2
    rig.provider.crash_at = 0
    rig.open()
    rig.check_all(18)


def test_l07_rolls_that_cannot_be_recorded_are_written_before_anything_in_them(rig: Rig) -> None:
    rig.put(0, 9)
    rig.scan()
    rig.put(9, 9)
    rig.files.plan = {"write_synced": [28] * 20}
    outcomes = rig.dispatcher.scan(force=True)
    assert any(outcome.status is DispatchStatus.FAILED for outcome in outcomes)
    rig.files.plan = {}
    rig.dispatcher.scan(force=True)  # `ReadByJava` looks
    rig.check_all(18)
