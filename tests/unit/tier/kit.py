"""Queues of known messages for the tests of the tier."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.record import Message, decode_record, encode_record
from tieredstore.providers.memory import MemoryProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run

T0 = 1_700_000_000_000
BROKER = "broker-a"


class TableMetadata:
    """A metadata store in memory, with the contract's copies."""

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

    def topics(self):
        return list(self.topic_table.values())

    def topic(self, topic):
        return self.topic_table.get(topic)

    def add_topic(self, topic, reserve_time_hours=-1):
        if topic not in self.topic_table:
            self.topic_table[topic] = TopicMetadata(
                self.next_id, topic, reserve_time_hours=reserve_time_hours
            )
            self.next_id += 1
        return self.topic_table[topic]

    def update_topic(self, topic):
        if topic.topic in self.topic_table:
            self.topic_table[topic.topic] = topic

    def delete_topic(self, topic):
        self.topic_table.pop(topic, None)
        for key in [key for key in self.queue_table if key[0] == topic]:
            del self.queue_table[key]

    def queues(self, topic):
        return [queue for key, queue in self.queue_table.items() if key[0] == topic]

    def queue(self, topic, queue_id):
        return self.queue_table.get((topic, queue_id))

    def add_queue(self, topic, queue_id):
        return self.queue_table.setdefault(
            (topic, queue_id), QueueMetadata(topic, queue_id, BROKER)
        )

    def update_queue(self, queue):
        self.queue_table[queue.topic, queue.queue_id] = queue

    def delete_queue(self, topic, queue_id):
        self.queue_table.pop((topic, queue_id), None)

    def segments(self, path=None, type=None):
        found = [
            entry.copy()
            for entry in self.segment_table.values()
            if path in (None, entry.path) and type in (None, entry.type)
        ]
        return iter(sorted(found, key=lambda entry: (entry.path, entry.type, entry.base_offset)))

    def segment(self, id):
        entry = self.segment_table.get(id)
        return entry.copy() if entry else None

    def put_segment(self, segment):
        old = self.segment_table.get(segment.id)
        new = segment.copy()
        if old is not None:
            new.create_timestamp_ms = old.create_timestamp_ms
        self.segment_table[segment.id] = new

    def delete_segment(self, id):
        self.segment_table.pop(id, None)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def destroy(self) -> None:
        self.__init__()


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
    """A stored record and its tags code, as a local store would have them."""
    if body is None:
        body = f"{topic}-{queue_id}-{queue_offset}-".encode().ljust(body_size, b"x")
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


def batch(first: int, count: int, *, pieces: int = 1, **arguments):
    """(units, records) of consecutive messages, the records in `pieces` buffers."""
    made = [record(offset, **arguments) for offset in range(first, first + count)]
    return as_batch(made, pieces)


def as_batch(made: list[tuple[bytes, int]], pieces: int = 1):
    units = np.zeros(len(made), UNIT_DTYPE)
    units["size"] = [len(data) for data, _ in made]
    units["tags_code"] = [code for _, code in made]
    groups = np.array_split(np.arange(len(made)), min(pieces, len(made)) or 1)
    records = [memoryview(b"".join(made[i][0] for i in group)) for group in groups]
    return units, records


def config(**values) -> StoreConfig:
    values.setdefault("broker_name", BROKER)
    return StoreConfig(**values)


@dataclass
class Tier:
    """A provider and a metadata store that outlive the stores opened over them."""

    provider: object = field(default_factory=MemoryProvider)
    metadata: TableMetadata = field(default_factory=TableMetadata)
    clock: ManualClock = field(default_factory=lambda: ManualClock(T0 + 1_000_000))
    settings: dict[str, object] = field(default_factory=dict)

    def store(self) -> FlatFileStore:
        store = FlatFileStore(config(**self.settings), self.provider, self.metadata, self.clock)
        store.load()
        return store

    def queue(self, first: int = 0, topic: str = "TopicA", queue_id: int = 0) -> FlatMessageFile:
        """The queue, freshly opened, and made when it is new."""
        file = self.store().get_or_create(topic, queue_id)
        file.init_offset(first)
        return file

    def objects(self) -> dict[SegmentId, bytes]:
        """What the backend holds."""
        return {
            item.id: bytes(self.provider.open(item.id).read(0, item.size_bytes))
            for item in self.provider.list("")
        }


def fill(file: FlatMessageFile, first: int, count: int, **arguments) -> None:
    """Append and commit."""
    file.append_batch(*batch(first, count, **arguments))
    assert file.commit()


def read_messages(file: FlatMessageFile, offset: int, count: int) -> list:
    """Messages from a queue offset on, each checked against its unit."""
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


def bodies(file: FlatMessageFile) -> list[tuple[int, bytes]]:
    """(queue offset, body) of everything that can be read."""
    found = []
    offset = file.consume_queue_min_offset
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
