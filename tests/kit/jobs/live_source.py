"""A source tier that changes during a copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.kit.jobs.copy import state
from tests.kit.tier.flat import T0, ListSource, config
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentListing,
    SegmentProvider,
    WriterEpoch,
    WriteResult,
)
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

QUEUES = (QueueKey("TopicA", 0), QueueKey("TopicA", 1), QueueKey("TopicB", 0))


class WatchedProvider(WrapperProvider):
    """Provider that calls `before` ahead of each segment listing, size query and read. Its argument
    is the number of the call, from 1."""

    def __init__(self, provider: SegmentProvider, before: Callable[[int], None]) -> None:
        super().__init__(provider)
        self._before = before
        self._lock = threading.RLock()
        self.calls = 0

    def watch(self) -> None:
        with self._lock:
            self.calls += 1
            self._before(self.calls)

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        self.watch()
        return super().list(prefix)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _WatchedSegment(segment, self)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        raise AssertionError("a source is only read")


class _WatchedSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, provider: WatchedProvider) -> None:
        super().__init__(segment)
        self._provider = provider

    def size(self) -> int:
        self._provider.watch()
        return super().size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        raise AssertionError("a source is only read")

    def read(self, position: int, length: int) -> memoryview:
        self._provider.watch()
        return super().read(position, length)

    def seal(self) -> None:
        raise AssertionError("a source is only read")

    def delete(self) -> None:
        raise AssertionError("a source is only read")


class LiveWriter:
    """A dispatcher and an index that write a tier. Each step puts messages, uploads, and updates
    the index."""

    def __init__(self, root: Path, provider: SegmentProvider) -> None:
        settings = config(
            commit_log_max_size_bytes=1_500,
            consume_queue_max_size_bytes=200,
            group_commit_count=4,
            dispatch_threads=1,
            index_file_max_hash_slot_num=8,
            index_file_max_index_num=64,
        )
        self._clock = ManualClock(T0)
        self._metadata = state(root)
        self._metadata.load()
        self._source = ListSource()
        self._files = FlatFileStore(settings, provider, self._metadata, self._clock)
        self._writer = become_writer(self._files)
        self._files.load()
        self.index = IndexStoreService(
            settings, provider, self._metadata, root / "state", self._clock
        )
        self.index.recover()
        self._dispatcher = MessageStoreDispatcher(
            settings, self._source, self._files, self.index, TopicFilter(settings), self._clock
        )
        self.steps = 0

    def step(self) -> None:
        """Put one more message into each queue. Every fifth step also uploads the index."""
        for key in QUEUES:
            name = f"{key.topic}-{key.queue_id}-{self.steps}"
            self._source.put(key, self.steps, 1, keys=(name,), uniq_key=f"U{name}")
        self.steps += 1
        self._clock.advance(60_000)
        self._dispatcher.scan(force=True)
        if self.steps % 5 == 0:
            self.index.seal_and_upload(force=True)

    def close(self) -> None:
        self.index.seal_and_upload(force=True)
        self.index.stop(force=False)
        self._files.close()
        self._writer.release()
        self._metadata.close()
