"""Small in-memory tiers that flat files write, and fetchers that read them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageResult, MessageFilter
from tieredstore.contracts.segment import (
    Capabilities,
    FileSegment,
    FileSegmentType,
    SegmentId,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Unavailable
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hashes import tags_code
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import key_upload

BROKER = "broker-a"
TOPIC = "TopicA"
FIRST_TIME_MS = 1_700_000_000_000


class CountingSegment(WrapperSegment):
    """A segment that counts reads, and calls a hook before each."""

    def __init__(self, segment: FileSegment, provider: CountingProvider) -> None:
        super().__init__(segment)
        self._provider = provider

    def read(self, position: int, length: int) -> memoryview:
        self._provider.before_read(self.id, length)
        return super().read(position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        return None if self._provider.is_slow else super().read_nowait(position, length)


class CountingProvider(WrapperProvider):
    """In-memory tier that counts reads and can fail. Its reads may be asynchronous."""

    def __init__(self) -> None:
        self._memory = MemoryProvider()
        super().__init__(self._memory)
        self.reads: list[SegmentId] = []
        self.read_bytes: Counter[FileSegmentType] = Counter()
        self.is_down = False
        self.is_slow = True
        self.is_object_store = False
        self.on_read: Callable[[], object] = lambda: None

    @property
    def capabilities(self) -> Capabilities:
        known = super().capabilities
        return replace(known, rewritable=known.rewritable and not self.is_object_store)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return CountingSegment(segment, self)

    def before_read(self, id: SegmentId, length: int) -> None:
        self.reads.append(id)
        self.read_bytes[id.type] += length
        self.on_read()
        if self.is_down:
            raise Unavailable(f"{id}: the backend is down")

    def forget_reads(self) -> None:
        self.reads.clear()
        self.read_bytes.clear()

    def reads_of(self, type: FileSegmentType) -> int:
        return sum(read.type is type for read in self.reads)

    def content(self, type: FileSegmentType, base: int = 0, queue_id: int = 0) -> bytearray:
        return self._memory._contents[SegmentId(f"{BROKER}/{TOPIC}/{queue_id}", type, base)]


class AtOnce(Executor):
    """Executor that runs each call immediately."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class Later(Executor):
    """Executor that keeps its calls until a test runs them."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], Any]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.kept.append(lambda: work(*args, **kwargs))
        return Future()

    def do_all(self) -> None:
        kept, self.kept = self.kept, []
        for work in kept:
            work()


class AllTopics:
    """Topic filter that accepts all topics but those that the test rejects."""

    def __init__(self, filtered: Iterable[str] = ()) -> None:
        self.filtered = set(filtered)

    def is_filtered(self, topic: str) -> bool:
        return topic in self.filtered


class Tier:
    """One broker's tier and a fetcher that reads it."""

    def __init__(self, path: Path, *, has_index: bool = False, **config: Any) -> None:
        small: dict[str, Any] = {
            "read_ahead_cache_size_bytes": 64 << 20,
            "index_file_max_hash_slot_num": 100,
            "index_file_max_index_num": 5000,
        }
        self.config = StoreConfig(broker_name=BROKER, **{**small, **config})
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.provider = CountingProvider()
        self.metadata = DefaultMetadataStore(path / "metadata.json", BROKER, self.clock)
        self.metadata.load()
        self.flat_files = FlatFileStore(self.config, self.provider, self.metadata, self.clock)
        become_writer(self.flat_files)
        self.flat_files.load()
        self.index = None
        if has_index:
            self.index = IndexStoreService(
                self.config, self.provider, self.metadata, path, self.clock
            )
            self.index.recover()
        self.topic_filter = AllTopics()
        self.new_fetcher()

    def new_fetcher(
        self, *, ahead: Executor | None = None, **changes: object
    ) -> MessageStoreFetcher:
        """Return a fetcher with an empty cache, and optionally other settings. `ahead` is the
        executor of the read-ahead. It makes the backend count as an object store."""
        self.provider.is_object_store = ahead is not None
        self.config = msgspec.structs.replace(self.config, **changes)
        self.fetcher = MessageStoreFetcher(
            self.config,
            self.flat_files,
            self.index,
            self.metadata,
            cast("TopicFilter", self.topic_filter),  # a fetcher asks nothing else of one
            self.clock,
            self.metrics,
            ahead=ahead,
        )
        self.provider.is_object_store = False
        return self.fetcher

    @property
    def key_index(self) -> IndexStoreService:
        """Return the key index of a tier that was opened with one."""
        assert self.index is not None
        return self.index

    def file(self, queue_id: int = 0) -> FlatMessageFile:
        found = self.flat_files.get(TOPIC, queue_id)
        assert found is not None
        return found

    @property
    def file_key(self) -> QueueKey:
        """Cache key of queue 0."""
        return QueueKey(TOPIC, 0)

    def add(
        self,
        count: int,
        *,
        first: int = 0,
        queue_id: int = 0,
        tags: Sequence[str] = ("TagA",),
        keys: Callable[[int], Sequence[str]] = lambda offset: (f"k{offset}",),
        body: bytes = b"x" * 50,
        step_ms: int = 10,
        commit: bool = True,
    ) -> FlatMessageFile:
        """Append `count` messages to a queue, which begins at `first` if it is new. Message n was
        stored at FIRST_TIME_MS + n * step_ms."""
        file = self.flat_files.get_or_create(TOPIC, queue_id)
        file.init_offset(first)
        begin = file.consume_queue_max_offset
        records = []
        units = np.zeros(count, UNIT_DTYPE)
        for row in range(count):
            offset = begin + row
            tag = tags[offset % len(tags)]
            message = Message.create(
                TOPIC, body, queue_id=queue_id, tags=tag, keys=keys(offset), uniq_key=f"u{offset}"
            )
            record = encode_record(message, offset, 0, FIRST_TIME_MS + offset * step_ms)
            records.append(record)
            units[row] = (0, len(record), tags_code(tag))
        batch = file.append_batch(units, [memoryview(b"".join(records))])
        if commit:
            assert file.commit()
            if self.index is not None:
                key_upload.put_batch(self.index, file, batch)
        return file

    def get(
        self,
        offset: int,
        max_count: int = 32,
        message_filter: MessageFilter | None = None,
        queue_id: int = 0,
    ) -> GetMessageResult:
        return self.fetcher.get_message("g", TOPIC, queue_id, offset, max_count, message_filter)


def offsets_of(result: GetMessageResult) -> list[int]:
    return [message.queue_offset for message in result.messages]


def run_threads(count: int, target: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
