"""Queues of known messages for tests of the tier."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tieredstore.clock import ManualClock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run

T0 = 1_700_000_000_000
BROKER = "broker-a"
KEY = QueueKey("TopicA", 0)
_KEYS: dict[int, str] = {}
"""Keys of all created records, by hash."""


class TableMetadata:
    """An in-memory metadata store that copies its entries, as the contract demands."""

    def __init__(self) -> None:
        self.topic_table: dict[str, TopicMetadata] = {}
        self.queue_table: dict[tuple[str, int], QueueMetadata] = {}
        self.segment_table: dict[SegmentId, FileSegmentMetadata] = {}
        self.next_id = 0

    def load(self) -> None:
        pass

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        yield

    def topics(self) -> list[TopicMetadata]:
        return list(self.topic_table.values())

    def topic(self, topic: str) -> TopicMetadata | None:
        return self.topic_table.get(topic)

    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        if topic not in self.topic_table:
            self.topic_table[topic] = TopicMetadata(
                self.next_id, topic, reserve_time_hours=reserve_time_hours
            )
            self.next_id += 1
        return self.topic_table[topic]

    def update_topic(self, topic: TopicMetadata) -> None:
        if topic.topic in self.topic_table:
            self.topic_table[topic.topic] = topic

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        found = self.topic_table.get(topic.topic)
        if found is None or found.topic_id != topic.topic_id:
            return False
        found.reserve_time_hours = hours
        return True

    def delete_topic(self, topic: str) -> None:
        self.topic_table.pop(topic, None)
        for key in [key for key in self.queue_table if key[0] == topic]:
            del self.queue_table[key]

    def queues(self, topic: str) -> list[QueueMetadata]:
        return [queue for key, queue in self.queue_table.items() if key[0] == topic]

    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None:
        return self.queue_table.get((topic, queue_id))

    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        return self.queue_table.setdefault(
            (topic, queue_id), QueueMetadata(topic, queue_id, BROKER)
        )

    def update_queue(self, queue: QueueMetadata) -> None:
        self.queue_table[queue.topic, queue.queue_id] = queue

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self.queue_table.pop((topic, queue_id), None)

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        found = [
            entry.copy()
            for entry in self.segment_table.values()
            if path in (None, entry.path) and type in (None, entry.type)
        ]
        return iter(sorted(found, key=lambda entry: (entry.path, entry.type, entry.base_offset)))

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None:
        entry = self.segment_table.get(id)
        return entry.copy() if entry else None

    def put_segment(self, segment: FileSegmentMetadata) -> None:
        old = self.segment_table.get(segment.id)
        new = segment.copy()
        if old is not None:
            new.create_timestamp_ms = old.create_timestamp_ms
        self.segment_table[segment.id] = new

    def delete_segment(self, id: SegmentId) -> None:
        self.segment_table.pop(id, None)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def destroy(self) -> None:
        self.topic_table.clear()
        self.queue_table.clear()
        self.segment_table.clear()
        self.next_id = 0


def record(
    queue_offset: int,
    *,
    topic: str = "TopicA",
    queue_id: int = 0,
    body: bytes | None = None,
    body_size: int = 20,
    timestamp_ms: int | None = None,
    tags: str | None = "TagA",
    keys: tuple[str, ...] = (),
    properties: dict[str, str] | None = None,
    host: tuple[str, int] = ("127.0.0.1", 0),
    physical_offset: int | None = None,
    uniq_key: str | None = None,
) -> tuple[bytes, int]:
    """Return a record as a local store has it, and its tags code."""
    if body is None:
        body = f"{topic}-{queue_id}-{queue_offset}-".encode().ljust(body_size, b"x")
    _KEYS.update((tiered_key_hash(topic, key), key) for key in (*keys, uniq_key) if key)
    message = Message.create(
        topic,
        body,
        queue_id=queue_id,
        tags=tags,
        keys=keys,
        uniq_key=uniq_key,
        properties=properties,
        born_timestamp_ms=T0,
        born_host=host,
    )
    data = encode_record(
        message,
        queue_offset,
        queue_offset * 1000 + 7 if physical_offset is None else physical_offset,
        T0 + queue_offset if timestamp_ms is None else timestamp_ms,
    )
    return bytes(data), message.tags_code


def batch(
    first: int, count: int, *, pieces: int = 1, **arguments: Any
) -> tuple[npt.NDArray[np.void], list[memoryview]]:
    """Return the units and the records of consecutive messages, with the records split into
    `pieces` buffers."""
    made = [record(offset, **arguments) for offset in range(first, first + count)]
    return as_batch(made, pieces)


def as_batch(
    made: list[tuple[bytes, int]], pieces: int = 1
) -> tuple[npt.NDArray[np.void], list[memoryview]]:
    units = np.zeros(len(made), UNIT_DTYPE)
    units["size"] = [len(data) for data, _ in made]
    units["tags_code"] = [code for _, code in made]
    groups = np.array_split(np.arange(len(made)), min(pieces, len(made)) or 1)
    records = [memoryview(b"".join(made[i][0] for i in group)) for group in groups]
    return units, records


def config(**values: Any) -> StoreConfig:
    values.setdefault("broker_name", BROKER)
    return StoreConfig(**values)


@dataclass
class Tier:
    """A provider and a metadata store, over which tests open flat file stores one after another."""

    provider: SegmentProvider = field(default_factory=MemoryProvider)
    metadata: MetadataStore = field(default_factory=TableMetadata)
    clock: ManualClock = field(default_factory=lambda: ManualClock(T0 + 1_000_000))
    settings: dict[str, object] = field(default_factory=dict)

    def store(self) -> FlatFileStore:
        store = FlatFileStore(config(**self.settings), self.provider, self.metadata, self.clock)
        store.load()
        return store

    def queue(self, first: int = 0, topic: str = "TopicA", queue_id: int = 0) -> FlatMessageFile:
        """Return the queue, creating it if it is new."""
        file = self.store().get_or_create(topic, queue_id)
        file.init_offset(first)
        return file

    @property
    def table(self) -> TableMetadata:
        """The metadata store, unless a test has wrapped it."""
        assert isinstance(self.metadata, TableMetadata)
        return self.metadata

    @property
    def contents(self) -> dict[SegmentId, bytearray]:
        """Return the bytes of each segment in memory, which a test may change."""
        assert isinstance(self.provider, MemoryProvider)
        return self.provider._contents

    def objects(self) -> dict[SegmentId, bytes]:
        """Return the objects of the backend."""
        return {
            item.id: bytes(self.provider.open(item.id).read(0, item.size_bytes))
            for item in self.provider.list("")
        }


def existing(store: FlatFileStore, key: QueueKey = KEY) -> FlatMessageFile:
    """Return an existing queue of a store."""
    file = store.get(*key)
    assert file is not None
    return file


def patch(target: object, **attributes: object) -> None:
    """Replace methods of one object."""
    for name, value in attributes.items():
        setattr(target, name, value)


def fill(file: FlatMessageFile, first: int, count: int, **arguments: Any) -> None:
    """Append and commit messages."""
    file.append_batch(*batch(first, count, **arguments))
    assert file.commit()


def read_messages(file: FlatMessageFile, offset: int, count: int) -> list[StoredMessage]:
    """Return the messages from a queue offset on, after checking each against its unit."""
    units = run(file.read_units(offset, count))
    found = []
    for index, unit in enumerate(units):
        position, size = int(unit["physical_offset"]), int(unit["size"])
        data = run(file.read_commit_log(position, size))
        assert len(data) == size, (offset + index, position, size, len(data))
        message = decode_record(data, tags_code=int(unit["tags_code"]))
        assert message.physical_offset == position
        assert message.queue_offset == offset + index
        found.append(message)
    return found


def bodies(file: FlatMessageFile, first: int = 0) -> list[tuple[int, bytes]]:
    """Return (queue offset, body) of all readable messages from queue offset `first` on."""
    found = []
    offset = max(first, file.consume_queue_min_offset)
    while offset < file.consume_queue_commit_offset:
        messages = read_messages(file, offset, 1000)
        if not messages:
            offset = file.next_valid_offset(offset)
            continue
        found += [(message.queue_offset, bytes(message.body)) for message in messages]
        offset += len(messages)
    return found


def commit_log_id(base: int, path: str = f"{BROKER}/TopicA/0") -> SegmentId:
    return SegmentId(path, FileSegmentType.COMMIT_LOG, base)


def consume_queue_id(base: int, path: str = f"{BROKER}/TopicA/0") -> SegmentId:
    return SegmentId(path, FileSegmentType.CONSUME_QUEUE, base)


class ListSource:
    """A local store whose records are in lists, with the methods that the dispatcher calls."""

    def __init__(self) -> None:
        self.tables: dict[QueueKey, dict[int, tuple[bytes, int]]] = {}
        self.minimum: dict[QueueKey, int] = {}
        self.hidden: set[QueueKey] = set()
        self.bad: set[tuple[QueueKey, int]] = set()
        self.guard: Callable[[QueueKey], int | None] | None = None
        self.reserve: dict[str, int] = {}
        self.levels: dict[str, StorageLevel] = {}
        self.reads: list[tuple[QueueKey, int, int]] = []
        self._handed: dict[int, tuple[QueueKey, int]] = {}
        self._tokens: dict[tuple[QueueKey, int], int] = {}

    def put(self, key: QueueKey, first: int, count: int = 1, **arguments: Any) -> None:
        arguments.setdefault("topic", key.topic)
        arguments.setdefault("queue_id", key.queue_id)
        table = self.tables.setdefault(key, {})
        for offset in range(first, first + count):
            table[offset] = record(offset, **arguments)
        self.minimum.setdefault(key, first)

    def put_records(self, key: QueueKey, first: int, made: list[tuple[bytes, int]]) -> None:
        table = self.tables.setdefault(key, {})
        for index, one in enumerate(made):
            table[first + index] = one
        self.minimum.setdefault(key, first)

    def clean(self, key: QueueKey, minimum: int) -> None:
        self.minimum[key] = minimum

    def lose(self, key: QueueKey, behind: int) -> None:
        """Delete all messages from a queue offset on."""
        self.tables[key] = {q: one for q, one in self.tables[key].items() if q < behind}

    def queues(self) -> Iterable[QueueKey]:
        return list(self.tables)

    def flush(self) -> None:
        pass

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        table = self.tables.get(key)
        if table is None or key in self.hidden:
            return None
        top = max(table, default=-1) + 1
        return QueueRange(min(self.minimum[key], top), top)

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        self.reads.append((key, offset, count))
        table = self.tables[key]
        found = []
        for q in range(offset, offset + count):
            if q not in table or q < self.minimum[key]:
                break
            found.append(table[q])
        units, _ = as_batch(found) if found else (np.zeros(0, UNIT_DTYPE), None)
        for index in range(len(units)):
            place = (key, offset + index)
            token = self._tokens.setdefault(place, len(self._tokens))
            self._handed[token] = place
            units["physical_offset"][index] = token
        return units

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        found = []
        for unit in units:
            key, offset = self._handed[int(unit["physical_offset"])]
            if (key, offset) in self.bad:
                raise Corrupt(f"bad record at queue offset {offset}", offset=offset)
            found.append(memoryview(self.tables[key][offset][0]))
        return found

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        return self.minimum[key] <= offset

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        return True

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        for offset in sorted(self.tables[key]):
            stored = decode_record(self.tables[key][offset][0]).store_timestamp_ms
            if offset >= self.minimum[key] and stored >= timestamp_ms:
                return offset
        found = self.queue_range(key)
        assert found is not None
        return found.max_offset

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        return -1

    def topic_reserve_hours(self) -> dict[str, int]:
        return self.reserve

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        return self.levels

    def find_excluded_topics(self) -> dict[str, str]:
        return {}

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        self.guard = guard


class ListIndex:
    """Records the keys of all puts in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, str, int, int, int]] = []
        self.marks: dict[tuple[int, int], int] = {}
        self.durable_marks: dict[tuple[int, int], int] = {}
        self.fail = False

    def put_hashes(
        self,
        topic_id: int,
        queue_id: int,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        store_timestamps: npt.NDArray[np.int64],
        indexed_until: int,
    ) -> int:
        if self.fail:
            raise Unavailable("index disk")
        columns = (column.tolist() for column in (hashes, offsets, sizes, store_timestamps))
        for key_hash, *row in zip(*columns, strict=True):
            self.rows.append((topic_id, queue_id, _KEYS[key_hash], *row))
        self.mark_indexed(topic_id, queue_id, indexed_until)
        return len(hashes)

    def check_takes_keys(self) -> None:
        if self.fail:
            raise Unavailable("index disk")

    def mark_indexed(self, topic_id: int, queue_id: int, commit_log_offset: int) -> None:
        old = self.marks.get((topic_id, queue_id), 0)
        self.marks[topic_id, queue_id] = max(old, commit_log_offset)

    def find_indexed_end(self, topic_id: int, queue_id: int) -> int | None:
        return self.marks.get((topic_id, queue_id))

    def checkpoint(self) -> None:
        self.durable_marks = dict(self.marks)

    def keys(self) -> list[str]:
        return [row[2] for row in self.rows]
