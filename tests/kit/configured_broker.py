"""A broker's store that is configured by Java keys, as in a `broker.conf`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tests.kit.store_type import STORE_TYPE
from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.config import (
    FIELDS_BY_KEY,
    LoadedConfig,
    StoreConfig,
    change_config,
    config_from_properties,
    parse_setting,
)
from tieredstore.contracts.message_store import GetMessageResult, MessageFilter
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FileSegment,
    FileSegmentType,
    SegmentId,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment, find_layer
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.properties import is_runtime
from tieredstore.providers.memory.provider import MemoryProvider

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
TOPIC = "TopicA"
FOREVER = (0, 2**63 - 1)

SMALL: dict[str, object] = {
    "brokerName": "broker-a",
    "storeType": STORE_TYPE,
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": f"{__name__}:RecordingProvider",
    "mappedFileSizeCommitLog": 1 << 17,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 10,
    "maxIndexNum": 500,
    "tieredStoreIndexFileMaxHashSlotNum": 10,
    "tieredStoreIndexFileMaxIndexNum": 500,
    "readAheadCacheSizeBytes": 8 << 20,
}
"""Configuration of a small store, by Java's keys. Tests change or add keys."""


def properties(root: Path, **keys: object) -> dict[str, str]:
    """Return the Java properties SMALL for a store in `root`, with changes."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "tier").mkdir(exist_ok=True)
    places = {"storePathRootDir": root / "store", "tieredStoreFilePath": root / "tier"}
    values = {**SMALL, **places, **keys}
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }


def conf(root: Path, **keys: object) -> LoadedConfig:
    """Load a configuration from the given properties. Raises AssertionError if there is a
    warning."""
    loaded = config_from_properties(properties(root, **keys), origin="broker.conf")
    assert loaded.warnings == ()
    return loaded


def drop_runtime_keys(keys: Mapping[str, object]) -> dict[str, object]:
    """Return the keys without those that can be changed at run time."""
    return {key: value for key, value in keys.items() if not is_runtime(FIELDS_BY_KEY[key])}


def change_runtime_keys(config: StoreConfig, root: Path, keys: Mapping[str, object]) -> None:
    """Apply those keys that can be changed at run time to a running store. Unchanged values are
    skipped."""
    texts = properties(root, **keys)
    runtime = keys.keys() - drop_runtime_keys(keys).keys()
    change_config(config, {key: parse_setting(key, texts[key], "update") for key in runtime})


class Call(NamedTuple):
    """A read or write of a segment: kind, position and size in bytes, and calling thread."""

    id: SegmentId
    position: int
    size: int
    thread: int


class RecordingProvider(WrapperProvider):
    """In-memory tier that records reads and writes, and runs a hook of the test before each. Reads
    may block."""

    def __init__(self) -> None:
        self._memory = MemoryProvider()
        super().__init__(self._memory)
        self.reads: list[Call] = []
        self.writes: list[Call] = []
        self.before: Callable[[], object] = lambda: None
        self._preferred_bytes = 0

    @classmethod
    def from_config(cls, config: StoreConfig) -> RecordingProvider:
        return cls()

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, preferred_batch_bytes=self._preferred_bytes)

    def prefer(self, size_bytes: int) -> None:
        """Set the preferred write size (`preferred_batch_bytes` of the capabilities)."""
        self._preferred_bytes = size_bytes

    @contextmanager
    def meetings(self, count: int) -> Iterator[None]:
        """Block the first call of each thread until `count` threads have called. Then wait briefly,
        so that a call by an additional thread is noticed."""
        seen = threading.local()
        changed = threading.Condition()
        threads: set[int] = set()

        def meet() -> None:
            if getattr(seen, "once", False):
                return
            seen.once = True
            with changed:
                threads.add(threading.get_ident())
                changed.notify_all()
                assert changed.wait_for(lambda: len(threads) >= count, 30)
                changed.wait_for(lambda: len(threads) > count, 0.05)

        self.before = meet
        try:
            yield
        finally:
            self.before = lambda: None

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return RecordingSegment(segment, self)

    def content(self, type: FileSegmentType, base: int = 0, queue_id: int = 0) -> bytearray:
        return self._memory._contents[SegmentId(f"broker-a/{TOPIC}/{queue_id}", type, base)]


class RecordingSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, provider: RecordingProvider) -> None:
        super().__init__(segment)
        self.provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self.provider.writes.append(Call(self.id, position, size, threading.get_ident()))
        self.provider.before()
        return super().write(position, buffers)

    def read(self, position: int, length: int) -> memoryview:
        self.provider.reads.append(Call(self.id, position, length, threading.get_ident()))
        self.provider.before()
        return super().read(position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        return None


class SteppedClock(ManualClock):
    """A clock for waiting threads. A thread continues when the test advances the clock past its
    deadline or releases it."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.deadlines: list[int] = []
        self._changed = threading.Condition()

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        deadline = self.now_ms() + timeout_ms
        with self._changed:
            self.deadlines.append(deadline)
            self._changed.notify_all()
        while self.now_ms() < deadline and not event.wait(0.001):
            pass
        return event.is_set()

    def await_waits(self, count: int) -> list[int]:
        """Wait until `wait` was called `count` times. Return the deadlines in epoch ms."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.deadlines) >= count, 30)
            return list(self.deadlines)


class Broker:
    """A store and its parts, without the background loops of the tier. With `at_run_time`, keys
    that a running store can change are set after the start."""

    def __init__(
        self, root: Path, clock: ManualClock, *, at_run_time: bool = False, **keys: object
    ) -> None:
        self.root = root
        self.clock = clock
        self.loaded = conf(root, **(drop_runtime_keys(keys) if at_run_time else keys))
        self.store: Any = registry.message_store(self.loaded, clock)
        self.local = self.store
        while not isinstance(self.local, DefaultMessageStore):
            self.local = self.local.next_store
        self.store.load()
        self.local.start()
        change_runtime_keys(self.loaded.config, root, keys)

    @property
    def provider(self) -> RecordingProvider:
        provider = find_layer(self.store.flat_files.provider, RecordingProvider)
        assert provider is not None
        return provider

    def put(self, count: int = 1, *, topic: str = TOPIC, queue_id: int = 0, **more: Any) -> None:
        """Put messages with bodies of 100 bytes. Message 7, for example, has the keys `k007` and
        `all`."""
        for _ in range(count):
            number = self.local.next_offset(topic, queue_id)
            values = {"body": b"x" * 100, "tags": "TagA", "keys": [f"k{number:03}", "all"], **more}
            message = Message.create(topic, values.pop("body"), queue_id=queue_id, **values)
            result = self.store.put_message(message)
            assert result.ok, result.status
        self.local.wait_until_dispatched()
        self.local.dispatch_source.flush()

    def scan(self, *, force: bool = False) -> int:
        """Run one upload round and return the number of uploaded messages."""
        outcomes = self.store.dispatcher.scan(force)
        assert not [outcome.error for outcome in outcomes if outcome.error is not None]
        return sum(outcome.messages for outcome in outcomes)

    def upload(self) -> int:
        """Upload all messages."""
        return self.scan(force=True)

    def get(
        self,
        offset: int = 0,
        count: int = 1000,
        message_filter: MessageFilter | None = None,
        queue_id: int = 0,
    ) -> GetMessageResult:
        found: GetMessageResult = self.store.get_message(
            "g", TOPIC, queue_id, offset, count, message_filter
        )
        return found

    def cold_get(
        self, offset: int = 0, count: int = 1000, message_filter: MessageFilter | None = None
    ) -> GetMessageResult:
        """Get messages that exist only in the tier."""
        found: GetMessageResult = self.store.fetcher.get_message(
            "g", TOPIC, 0, offset, count, message_filter
        )
        return found

    def query(self, key: str, store: Any = None, count: int = 1000) -> list[int]:
        """Return the queue offsets of the messages with a key."""
        found = (store or self.store).query_message(TOPIC, key, count, *FOREVER)
        return [message.queue_offset for message in found]

    def segments(self, type: FileSegmentType) -> dict[int, int]:
        """Return the sizes in bytes of the backend's segments of a type, by base offset."""
        listing = self.provider.list(self.loaded.config.broker_name)
        return {item.id.base_offset: item.size_bytes for item in listing if item.id.type is type}


MakeBroker: TypeAlias = Callable[..., Broker]
"""Function that makes a broker. Keyword arguments are Java keys, or the parameters `at` and `clock`
of `brokers`."""


def sizes(calls: Sequence[Call], type: FileSegmentType) -> list[int]:
    return [call.size for call in calls if call.id.type is type]


@contextmanager
def brokers(root: Path, *, at_run_time: bool = False) -> Iterator[MakeBroker]:
    """Yield a factory of brokers. Each broker has its own folder unless `at` names one. All brokers
    are stopped after the test."""
    made: list[Broker] = []

    def make(*, at: Path | None = None, clock: ManualClock | None = None, **keys: object) -> Broker:
        place = at or root / str(len(made))
        made.append(Broker(place, clock or ManualClock(T0), at_run_time=at_run_time, **keys))
        return made[-1]

    try:
        yield make
    finally:
        for broker in made:
            broker.store.shutdown()
