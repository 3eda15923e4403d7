"""Tables of the metadata JSON, split into parts so that a small change encodes few rows. Encoding a
file with 200,000 segments takes half a second. A part holds a few hundred names and caches its JSON
until one of its rows changes. Changed rows are copied under the store's lock and encoded without
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import orjson

from tieredstore.contracts.metadata_store import FileSegmentMetadata, QueueMetadata, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId

PART_NAMES: Final = 256
"""Number of topics, or paths of segments, that are encoded together."""
TABLE_BUCKETS: Final = 128
"""Number of dicts over which the names of a table are distributed."""

Extra: TypeAlias = dict[str, orjson.Fragment]
"""Encoded fields that this version does not know and writes back unchanged."""
Entry: TypeAlias = TopicMetadata | QueueMetadata | FileSegmentMetadata
CapturedRow: TypeAlias = tuple[Entry, Extra | None]
Captured: TypeAlias = CapturedRow | list[tuple[str, CapturedRow]]
"""Copy of the content stored under a name: one row, or several rows with their queue ids or base
offsets."""

T = TypeVar("T", TopicMetadata, QueueMetadata, FileSegmentMetadata)


class Content(Protocol):
    """Content that a table stores under a name."""

    part: Part[Any] | None

    def capture(self) -> Captured:
        """Return a copy of the current rows."""


C = TypeVar("C", bound=Content)


class Row(Generic[T]):
    """Entry of a table. To change it, assign a new `value`. Assigned values are never modified.
    `version`: version of the last change that must be durable before its call returns."""

    __slots__ = ("_extra", "_value", "part", "version")

    def __init__(self, value: T, extra: Extra | None = None) -> None:
        self._value: T = value
        self._extra = extra
        self.part: Part[Any] | None = None
        self.version = 0

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        self._value = value
        if self.part is not None:
            self.part.touch()

    def capture(self) -> CapturedRow:
        return self._value, self._extra


class Group(dict[int, Row[T]]):
    """Rows that a table stores under one name, by number: the segments of a path, or the queues of
    a topic."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        super().__init__()
        self.part: Part[Any] | None = None

    def put(self, number: int, row: Row[T]) -> Row[T]:
        """Add or replace a row."""
        self[number] = row
        row.part = self.part
        self._touch()
        return row

    def take(self, number: int) -> bool:
        """Remove a row. Returns whether the row existed."""
        if self.pop(number, None) is None:
            return False
        self._touch()
        return True

    def _touch(self) -> None:
        if self.part is not None:
            self.part.touch()

    def capture(self) -> list[tuple[str, CapturedRow]]:
        return [(str(number), row.capture()) for number, row in self.items()]


class Part(Generic[C]):
    """Part of a table: some of its names with their contents, in order. Not thread-safe."""

    __slots__ = ("encoded", "names", "version")

    def __init__(self) -> None:
        self.names: dict[str, C] = {}
        self.encoded: bytes | None = None
        self.version = 0

    def touch(self) -> None:
        """Drop the cached JSON after a change."""
        self.encoded = None
        self.version += 1


class CapturedPart:
    """Copy of the rows in a part of a table. `encode` does not need the lock."""

    __slots__ = ("_contents", "_part", "_version", "encoded")

    def __init__(self, part: Part[Any]) -> None:
        self._part = part
        self._version = part.version
        self._contents: list[tuple[str, Captured]] | None = None
        self.encoded = part.encoded
        if self.encoded is None:
            self._contents = [(name, content.capture()) for name, content in part.names.items()]

    def encode(self) -> bytes:
        """Return the names and contents as JSON, without the braces of the object."""
        if self.encoded is None:
            assert self._contents is not None
            self.encoded = orjson.dumps(
                {
                    name: {number: _fields(*row) for number, row in content}
                    if isinstance(content, list)
                    else _fields(*content)
                    for name, content in self._contents
                }
            )[1:-1]
            self._contents = None
        return self.encoded

    def keep(self) -> None:
        """Cache the JSON in the part, unless the part has changed since the capture."""
        if self._part.version == self._version:
            self._part.encoded = self.encoded


class Table(Generic[C]):
    """Contents by name, in the order of the parts. Not thread-safe. The names are distributed over
    many dicts, because resizing a single large dict would block readers for milliseconds."""

    __slots__ = ("_buckets", "parts")

    def __init__(self) -> None:
        self._buckets: tuple[dict[str, C], ...] = tuple({} for _ in range(TABLE_BUCKETS))
        self.parts: list[Part[C]] = []

    def get(self, name: str) -> C | None:
        return self._buckets[hash(name) % TABLE_BUCKETS].get(name)

    def __getitem__(self, name: str) -> C:
        return self._buckets[hash(name) % TABLE_BUCKETS][name]

    def __contains__(self, name: str) -> bool:
        return name in self._buckets[hash(name) % TABLE_BUCKETS]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def items(self) -> Iterator[tuple[str, C]]:
        """Yield each name with its content. Do not change the table during the iteration."""
        for part in self.parts:
            yield from part.names.items()

    def add(self, name: str, content: C) -> C:
        """Add a new name."""
        if not self.parts or len(self.parts[-1].names) >= PART_NAMES:
            self.parts.append(Part())
        part = self.parts[-1]
        self._buckets[hash(name) % TABLE_BUCKETS][name] = part.names[name] = content
        content.part = part
        part.touch()
        return content

    def remove(self, name: str) -> bool:
        """Remove a name. Returns whether the name existed."""
        content = self._buckets[hash(name) % TABLE_BUCKETS].pop(name, None)
        if content is None:
            return False
        part = content.part
        assert part is not None
        content.part = None
        del part.names[name]
        part.touch()
        if not part.names:
            self.parts.remove(part)
        return True

    def capture(self) -> list[CapturedPart]:
        """Return a copy of the current rows, by part."""
        return [CapturedPart(part) for part in self.parts]


def _fields(value: Entry, extra: Extra | None) -> dict[str, object]:
    """Return the fields of a row under Java's names and in Java's order."""
    fields: dict[str, object]
    if isinstance(value, FileSegmentMetadata):
        fields = {
            "path": value.path,
            "type": int(value.type),
            "baseOffset": value.base_offset,
            "status": value.status,
            "size": value.size,
            "createTimestamp": value.create_timestamp_ms,
            "beginTimestamp": value.begin_timestamp_ms,
            "endTimestamp": value.end_timestamp_ms,
            "sealTimestamp": value.seal_timestamp_ms,
        }
    elif isinstance(value, QueueMetadata):
        fields = {
            "queue": {
                "brokerName": value.broker_name,
                "queueId": value.queue_id,
                "topic": value.topic,
            },
            "minOffset": value.min_offset,
            "maxOffset": value.max_offset,
            "updateTimestamp": value.update_timestamp_ms,
        }
    else:
        fields = {
            "topicId": value.topic_id,
            "topic": value.topic,
            "status": value.status,
            "reserveTime": value.reserve_time_hours,
            "updateTimestamp": value.update_timestamp_ms,
        }
    if extra:
        fields.update(extra)
    return fields


SEGMENT_TABLES = {
    FileSegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    FileSegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    FileSegmentType.INDEX: "indexFileSegmentTable",
}
QUEUE_TABLE = "queueMetadataTable"
TOPIC_TABLE = "topicMetadataTable"
TOPIC_SERIAL = "topicSerialNumber"
NO_TOPIC_YET = -1
"""Value of `topicSerialNumber` (the highest topic id) before the first topic, which gets id 0."""

SegmentTable: TypeAlias = Table[Group[FileSegmentMetadata]]


class Image:
    """Consistent copy of all tables. `encode` does not need the lock."""

    def __init__(
        self, tables: dict[str, list[CapturedPart]], topic_serial: int, extra: Extra
    ) -> None:
        self._tables = tables
        self._topic_serial = topic_serial
        self._extra = extra

    def encode(self) -> bytes:
        """Return the JSON as Java writes it, with quoted integer keys and top-level fields in
        alphabetical order."""
        fields: dict[str, list[bytes]] = {
            name: [b"{", *_separate([part.encode() for part in parts]), b"}"]
            for name, parts in self._tables.items()
        }
        fields[TOPIC_SERIAL] = [orjson.dumps(self._topic_serial)]
        fields.update((name, [orjson.dumps(value)]) for name, value in self._extra.items())
        pieces = [b"{"]
        for number, (name, value) in enumerate(sorted(fields.items())):
            pieces += [b"," if number else b"", orjson.dumps(name), b":", *value]
        pieces.append(b"}")
        return b"".join(pieces)  # join once: each copy of a large file blocks all threads

    def parts(self) -> Iterator[CapturedPart]:
        """Yield the parts of all tables."""
        for parts in self._tables.values():
            yield from parts


class Tables:
    """All tables. Not thread-safe."""

    def __init__(self, topic_serial: int = NO_TOPIC_YET) -> None:
        self.topics: Table[Row[TopicMetadata]] = Table()
        self.queues: Table[Group[QueueMetadata]] = Table()
        self.segments: dict[FileSegmentType, SegmentTable] = {
            kind: Table() for kind in FileSegmentType
        }
        self.segment_count = 0
        self.topic_serial = topic_serial
        self.extra: Extra = {}

    def add_queue(self, queue: QueueMetadata, extra: Extra | None = None) -> Row[QueueMetadata]:
        """Add a new queue."""
        return self.add_queue_group(queue.topic).put(queue.queue_id, Row(queue, extra))

    def add_queue_group(self, topic: str) -> Group[QueueMetadata]:
        """Return the queues of a topic, empty for a new topic."""
        group = self.queues.get(topic)
        return self.queues.add(topic, Group()) if group is None else group

    def queue(self, topic: str, queue_id: int) -> Row[QueueMetadata] | None:
        group = self.queues.get(topic)
        return None if group is None else group.get(queue_id)

    def segment(self, id: SegmentId) -> Row[FileSegmentMetadata] | None:
        return self.find_segment(id.path, id.type, id.base_offset)

    def find_segment(
        self, path: str, type: FileSegmentType, base_offset: int
    ) -> Row[FileSegmentMetadata] | None:
        """Return the row of a segment, or None."""
        group = self.segments[type].get(path)
        return None if group is None else group.get(base_offset)

    def add_segment(
        self, segment: FileSegmentMetadata, extra: Extra | None = None
    ) -> Row[FileSegmentMetadata]:
        table = self.segments[segment.type]
        group = table.get(segment.path)
        if group is None:
            group = table.add(segment.path, Group())
        self.segment_count += segment.base_offset not in group
        return group.put(segment.base_offset, Row(segment, extra))

    def remove_segment(self, id: SegmentId) -> bool:
        """Remove a segment, and its path if it was the last one. Returns whether the segment
        existed."""
        table = self.segments[id.type]
        group = table.get(id.path)
        if group is None or not group.take(id.base_offset):
            return False
        self.segment_count -= 1
        if not group:
            table.remove(id.path)
        return True

    # Encoding

    def _list(self) -> Iterator[tuple[str, Table[Any]]]:
        for kind, name in SEGMENT_TABLES.items():
            yield name, self.segments[kind]
        yield QUEUE_TABLE, self.queues
        yield TOPIC_TABLE, self.topics

    def find_stale(self, most: int) -> list[Part[Any]]:
        """Return up to `most` parts without cached JSON."""
        stale: list[Part[Any]] = []
        for _, table in self._list():
            for part in table.parts:
                if part.encoded is None:
                    stale.append(part)
                    if len(stale) >= most:
                        return stale
        return stale

    def capture(self) -> Image:
        """Return a consistent copy of all tables. This is fast if few rows have changed since the
        tables were last encoded."""
        tables = {name: table.capture() for name, table in self._list()}
        return Image(tables, self.topic_serial, dict(self.extra))

    def encode(self) -> bytes:
        """Return the current rows as JSON."""
        return self.capture().encode()


def _separate(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the encoded parts of a JSON object, separated by commas. Skips empty parts."""
    comma = b""
    for part in parts:
        if part:
            yield comma
            yield part
            comma = b","
