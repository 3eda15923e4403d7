"""Tests of how long a queue waits for more messages to make a write cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.tier.flat import T0, ListIndex, ListSource, Tier, config, existing, patch, record
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FileSegment,
    FileSegmentType,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Corrupt
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.commit_interval import CommitInterval
from tieredstore.tier.upload.dispatcher import FINISH_MS, MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchStatus

KEY = QueueKey("TopicA", 0)
MIB = 1 << 20


class Preferring(WrapperProvider):
    """A provider that prefers writes of `preferred` bytes, and records the size of each write."""

    def __init__(self, preferred: int, *, durable: bool = False) -> None:
        self._memory = MemoryProvider()
        super().__init__(self._memory)
        self.preferred = preferred
        self.durable = durable
        self.writes: list[tuple[FileSegmentType, int]] = []

    @property
    def capabilities(self) -> Capabilities:
        known = super().capabilities
        return replace(known, preferred_batch_bytes=self.preferred, durable=self.durable)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return NotingSegment(segment, self)

    def sizes(self, type: FileSegmentType) -> list[int]:
        return [size for kind, size in self.writes if kind is type]


class NotingSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, provider: Preferring) -> None:
        super().__init__(segment)
        self.provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self.provider.writes.append((self.id.type, size))
        return super().write(position, buffers)


class Rig:
    def __init__(self, preferred: int = 8 * MIB, *, durable: bool = False, **keys: object) -> None:
        self.provider = Preferring(preferred, durable=durable)
        self.tier = Tier(provider=self.provider, settings=dict(keys))
        self.tier.clock.set(T0)
        self.source = ListSource()
        self.store = self.tier.store()
        settings = config(**self.tier.settings)
        self.dispatcher = MessageStoreDispatcher(
            settings,
            self.source,
            self.store,
            ListIndex(),
            TopicFilter(settings),
            self.tier.clock,
        )

    def scan(self, at_s: float) -> int:
        """Run a scan `at_s` seconds after T0. Return the number of uploaded messages."""
        self.tier.clock.set(T0 + int(at_s * 1000))
        return sum(outcome.messages for outcome in self.dispatcher.scan())

    def put(self, first: int, count: int, at_s: float = 0, body_size: int = 1000) -> None:
        self.source.put(KEY, first, count, body_size=body_size, timestamp_ms=T0 + int(at_s * 1000))


@pytest.mark.parametrize(
    ("bytes_per_s", "seconds"),
    [(0, 600), (200, 600), (8 * MIB / 600, 600), (MIB / 10, 80), (8 * MIB / 30, 30), (MIB, 30)],
)
def test_the_interval_is_the_time_that_fills_a_write_within_bounds(
    bytes_per_s: float, seconds: int
) -> None:
    interval = CommitInterval(30_000, 600_000, 8 * MIB)
    assert interval.interval_ms(bytes_per_s) == seconds * 1000


def test_without_a_preferred_size_every_interval_is_javas() -> None:
    interval = CommitInterval.from_config(config(), 0)
    assert [interval.interval_ms(rate) for rate in (0, 1, 1e9)] == [30_000] * 3
    assert not interval.is_due(30_000, 1 << 40, 0)
    assert interval.is_due(30_001, 1, 0)


def test_a_slow_queue_waits_for_the_longest_interval() -> None:
    rig = Rig()
    rig.put(0, 3)
    assert [rig.scan(at) for at in (31, 300, 600)] == [0, 0, 0]
    assert rig.scan(600.1) == 3


def test_a_full_write_or_a_long_backlog_goes_at_once() -> None:
    rig = Rig(preferred=10_000, group_commit_count=20)
    rig.put(0, 8)
    assert rig.scan(1) == 0
    rig.put(8, 2)
    assert rig.scan(2) == 10
    rig.put(10, 21, at_s=2, body_size=20)
    assert rig.scan(3) == 21


@pytest.mark.parametrize("bad", [12, 13])
def test_a_bad_local_record_holds_back_nothing_that_was_gathered_before_it(bad: int) -> None:
    rig = Rig(group_commit_count=4)
    rig.put(0, 20)
    rig.source.bad |= {(KEY, offset) for offset in range(bad, 20)}  # no good one follows
    for _ in range(2):
        [outcome] = rig.dispatcher.scan(force=True)
        assert isinstance(outcome.error, Corrupt)
    file = rig.store.get(*KEY)
    assert file is not None
    assert file.consume_queue_commit_offset == bad


def test_the_interval_falls_when_the_rate_rises_and_rises_when_it_falls() -> None:
    rig = Rig(preferred=60_000, group_commit_count=10_000)
    rig.put(0, 2)
    assert rig.scan(601) == 2
    # 100 messages in 60 s: twice what fills a write in that time
    rig.put(2, 40, at_s=601)
    rig.put(42, 60, at_s=661)
    assert rig.scan(661) == 100
    rig.put(102, 2, at_s=662)
    assert rig.scan(692) == 0
    assert rig.scan(700) == 2  # 38 s, not 600
    rig.put(104, 2, at_s=701)
    assert rig.scan(1300) == 0
    assert rig.scan(1301.1) == 2


def test_a_forced_pass_uploads_what_waits() -> None:
    rig = Rig()
    rig.put(0, 3)
    assert sum(outcome.messages for outcome in rig.dispatcher.scan(force=True)) == 3


@pytest.mark.parametrize(("preferred", "uploaded"), [(8 * MIB, 3), (0, 0)])
def test_a_shutdown_uploads_what_waits_longer_than_javas_timeout(
    preferred: int, uploaded: int
) -> None:
    rig = Rig(preferred)
    patch(rig.tier.clock, wait=lambda event, timeout_ms: event.wait(30))
    rig.put(0, 3)
    rig.dispatcher.start()
    rig.dispatcher.finish()
    rig.dispatcher.finish()
    file = rig.store.get(*KEY)
    assert (file.consume_queue_commit_offset if file else 0) == uploaded


def test_a_shutdown_waits_for_no_upload_beyond_its_time() -> None:
    rig = Rig(dispatch_threads=1)
    for number in range(3):
        rig.source.put(QueueKey("TopicA", number), 0, 1, timestamp_ms=T0)
    read = rig.source.read_records

    def slow(units: Any) -> Any:
        if rig.dispatcher._deadline_ms < 2**62:
            rig.tier.clock.advance(FINISH_MS // 2 + 1)
        return read(units)

    patch(rig.source, read_records=slow)
    patch(rig.tier.clock, wait=lambda event, timeout_ms: event.wait(30))
    rig.dispatcher.start()
    rig.dispatcher.finish()
    assert sum(file.consume_queue_commit_offset for file in rig.store.files()) == 2


def test_what_waits_is_kept_by_the_retention_guard() -> None:
    rig = Rig(durable=True)
    rig.put(0, 3)
    rig.scan(601)
    rig.put(3, 3, at_s=601)
    [outcome] = rig.dispatcher.scan()
    assert outcome.status is DispatchStatus.HELD
    assert rig.dispatcher.retention_guard(KEY) == 3


@pytest.mark.parametrize("body_size", [20, 1000, 100_000])
def test_a_fast_queue_fills_each_write(body_size: int) -> None:
    """While enough bytes are waiting, each commit log write has at least the provider's preferred
    size. Each commit writes to the consume queue once."""
    preferred = 1_000_000
    rig = Rig(preferred, group_commit_size_bytes=400_000, max_group_commit_count=500)
    size = len(record(0, body_size=body_size)[0])
    count = 4_500_000 // size
    rig.put(0, count, body_size=body_size)
    assert rig.scan(601) == count
    *full, rest = rig.provider.sizes(FileSegmentType.COMMIT_LOG)
    assert sum(full) + rest == count * size
    assert all(preferred <= written < 1_400_000 + size for written in full)
    units = rig.provider.sizes(FileSegmentType.CONSUME_QUEUE)
    assert len(units) == len(full) + 1
    assert existing(rig.store).consume_queue_commit_offset == count
