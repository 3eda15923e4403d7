"""Tests of the engine's requests to a backend that charges per request. Here, a commit makes two
writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import T0, ListIndex, ListSource, TableMetadata, bodies, config
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentListing,
    SegmentProvider,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

KEY = QueueKey("TopicA", 0)
MINUTE_MS = 60_000
COMMIT = {("PUT", "COMMIT_LOG"): 1, ("PUT", "CONSUME_QUEUE"): 1, ("HEAD", ".writer"): 1}
"""Requests of a commit of one queue: two writes, and the fence check that confirms both."""


class CountingClient(MemoryObjectClient):
    """Counts requests by operation and purpose."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(now_ms=clock.now_ms)
        self.counts: Counter[tuple[str, str]] = Counter()

    def request(self, operation: str, key: str) -> None:
        names = ("COMMIT_LOG", "CONSUME_QUEUE", "INDEX", ".writer", ".inherited")
        self.counts[operation, next((name for name in names if f"/{name}/" in key), "")] += 1

    def take(self) -> dict[tuple[str, str], int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


class CountedSegment(WrapperSegment):
    """Counts calls of its methods in `calls`."""

    def __init__(self, segment: FileSegment, calls: Counter[str]) -> None:
        super().__init__(segment)
        self._calls = calls

    def size(self) -> int:
        self._calls["size"] += 1
        return super().size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._calls[f"write {self.id.type.name}"] += 1
        return super().write(position, buffers)

    def read(self, position: int, length: int) -> memoryview:
        self._calls["read"] += 1
        return super().read(position, length)

    def seal(self) -> None:
        self._calls["seal"] += 1
        super().seal()

    def delete(self) -> None:
        self._calls["delete"] += 1
        super().delete()


class CountedProvider(WrapperProvider):
    """Counts the engine's calls to a provider."""

    def __init__(self, provider: SegmentProvider) -> None:
        super().__init__(provider)
        self.calls: Counter[str] = Counter()

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return CountedSegment(segment, self.calls)

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        self.calls["list"] += 1
        return super().list(prefix)


class Rig:
    """A dispatcher on a chunk log, with one clock. `state` is the writer's state directory, or
    None."""

    def __init__(self, state: Path | None = None, **settings: Any) -> None:
        self.state = state
        self.clock = ManualClock(T0)
        self.client = CountingClient(self.clock)
        self.metadata = TableMetadata()
        self.source = ListSource()
        self.settings = config(**settings)
        self.open()

    def open(self) -> None:
        self.chunks: ChunkProvider = chunk_provider(
            self.client, clock=self.clock, monotonic_ms=self.clock.now_ms, group_bytes=0
        )
        self.provider = CountedProvider(self.chunks)
        self.store = FlatFileStore(self.settings, self.provider, self.metadata, self.clock)
        self.writer = become_writer(self.store, state=self.state)
        self.store.load()
        self.dispatcher = MessageStoreDispatcher(
            self.settings,
            self.source,
            self.store,
            ListIndex(),
            TopicFilter(self.settings),
            self.clock,
        )
        self.opening = self.client.take()
        self.provider.calls.clear()

    def forget(self) -> None:
        self.client.take()
        self.provider.calls.clear()

    def put(self, count: int, key: QueueKey = KEY) -> None:
        first = max(self.source.tables.get(key, {}), default=-1) + 1
        self.source.put(key, first, count, timestamp_ms=self.clock.now_ms(), body_size=100)

    def scan_for(self, minutes: int) -> int:
        """Scan every 20 s. Check the epoch between scans like the provider's background thread."""
        uploaded = 0
        for _ in range(3 * minutes):
            for _ in range(4):
                self.clock.advance(5_000)
                self.store.check_writer()
            uploaded += sum(outcome.messages for outcome in self.dispatcher.scan())
        return uploaded


def test_a_new_queue_costs_two_writes_and_no_listing() -> None:
    rig = Rig()
    rig.put(3)
    rig.dispatcher.scan(force=True)
    assert rig.provider.calls == {"write COMMIT_LOG": 1, "write CONSUME_QUEUE": 1}
    assert rig.client.take() == COMMIT


def test_a_steady_queue_costs_two_writes_and_a_look_a_commit_and_nothing_else() -> None:
    rig = Rig()
    rig.put(3)
    rig.dispatcher.scan(force=True)
    rig.forget()
    commits = 8
    for _ in range(commits):
        rig.put(3)
        assert rig.scan_for(11) == 3
    assert rig.provider.calls == {"write COMMIT_LOG": commits, "write CONSUME_QUEUE": commits}
    counts = rig.client.take()
    assert counts == dict.fromkeys(COMMIT, commits)


def test_idle_and_waiting_queues_cost_nothing() -> None:
    rig = Rig()
    for number in range(5):
        rig.put(3, QueueKey("TopicA", number))
    rig.dispatcher.scan(force=True)
    rig.forget()
    rig.put(3)
    assert rig.scan_for(9) == 0
    assert rig.provider.calls == {}
    assert rig.client.take() == {}


def test_a_writer_that_did_nothing_for_long_writes_as_ever() -> None:
    rig = Rig()
    rig.put(3)
    rig.dispatcher.scan(force=True)
    rig.forget()
    rig.clock.advance(60 * MINUTE_MS)
    rig.put(3)
    rig.dispatcher.scan(force=True)
    assert rig.client.take() == COMMIT


def test_a_start_after_a_stop_lists_nothing_and_a_first_commit_is_like_any_other(
    tmp_path: Path,
) -> None:
    """A start after a clean stop makes no listings, and its first commit needs no extra
    requests."""
    rig = Rig(tmp_path)
    for number in range(5):
        rig.put(3, QueueKey("TopicA", number))
    rig.dispatcher.scan(force=True)
    rig.store.close()
    rig.writer.release()
    rig.client.take()
    rig.open()
    counts = rig.opening
    assert ("LIST", "") not in counts
    inherited = {
        operation: counts[operation, kind] for operation, kind in counts if kind == ".inherited"
    }
    assert inherited == {"LIST": 2, "GET": 1, "PUT": 1}
    # That commit log and consume queue fit together, and which topics were deleted, is in no
    # listing. The state directory knows how it was at the stop.
    assert {kind for _, kind in counts} == {".writer", ".inherited"}
    # At the first visit the last message of the tier is compared with the local one.
    rig.dispatcher.scan()
    assert set(rig.client.take()) <= {("GET", "COMMIT_LOG"), ("GET", "CONSUME_QUEUE")}
    rig.put(3)
    rig.dispatcher.scan(force=True)
    assert rig.client.take() == COMMIT


@pytest.mark.parametrize("minimum", [0, 1 << 40])
def test_a_new_segment_costs_a_marker_and_no_listing(minimum: int) -> None:
    rig = Rig(commit_log_rolling_interval_hours=1, commit_log_rolling_minimum_size_bytes=minimum)
    rig.put(3)
    rig.dispatcher.scan(force=True)
    rig.scan_for(61)
    rig.forget()
    rig.put(3)
    rig.dispatcher.scan(force=True)
    counts = rig.client.take()
    counts.pop(("HEAD", ".writer"))
    assert rig.provider.calls["size"] == 0
    rolled = minimum == 0
    assert counts == {("PUT", "COMMIT_LOG"): 1 + rolled, ("PUT", "CONSUME_QUEUE"): 1}


def test_expiry_costs_requests_only_for_what_goes() -> None:
    rig = Rig(commit_log_max_size_bytes=1_000, consume_queue_max_size_bytes=60)
    rig.put(9)
    rig.dispatcher.scan(force=True)
    rig.put(9, QueueKey("TopicA", 1))
    expiry = TierExpiry(rig.settings, rig.store, rig.clock)
    rig.forget()
    expiry.run_once()
    assert rig.provider.calls == {}
    rig.clock.advance(73 * 60 * MINUTE_MS)
    assert expiry.run_once().segments > 0
    assert rig.provider.calls["size"] == 0
    file = rig.store.get(*KEY)
    assert file is not None
    assert bodies(file) == []
