"""The tables of the metadata JSON in memory, and the file that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import orjson

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.metadata.parts import CapturedPart, Extra, Group, Part, Row, Table

SEGMENT_TABLES = {
    FileSegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    FileSegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    FileSegmentType.INDEX: "indexFileSegmentTable",
}
QUEUE_TABLE = "queueMetadataTable"
TOPIC_TABLE = "topicMetadataTable"
TOPIC_SERIAL = "topicSerialNumber"
NO_TOPIC_YET = -1
"""Serial number of a store that never had a topic: the first one gets id 0."""

SegmentTable: TypeAlias = Table[Group[FileSegmentMetadata]]


class Image:
    """All tables as they were at a moment. `encode` needs no lock."""

    def __init__(
        self, tables: dict[str, list[CapturedPart]], topic_serial: int, extra: Extra
    ) -> None:
        self._tables = tables
        self._topic_serial = topic_serial
        self._extra = extra

    def encode(self) -> bytes:
        """Return Java's JSON with quoted integer keys, top-level fields in alphabetical order."""
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
        return b"".join(pieces)  # once: each copy of a large file holds up all threads

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
        """Add a queue that is not there."""
        return self.add_queue_group(queue.topic).put(queue.queue_id, Row(queue, extra))

    def add_queue_group(self, topic: str) -> Group[QueueMetadata]:
        """Return the queues of a topic, none as yet for a new one."""
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
        """Find the row of a segment; None where there is none."""
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
        """Remove a segment, and its path when no segment is left; tell whether the segment was
        there."""
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
        """Find parts whose JSON is not known, so many at most."""
        stale: list[Part[Any]] = []
        for _, table in self._list():
            for part in table.parts:
                if part.encoded is None:
                    stale.append(part)
                    if len(stale) >= most:
                        return stale
        return stale

    def capture(self) -> Image:
        """Note what is in all tables now. Takes as long as much has changed since the last
        `keep`."""
        tables = {name: table.capture() for name, table in self._list()}
        return Image(tables, self.topic_serial, dict(self.extra))

    def encode(self) -> bytes:
        """Return the JSON of what is there now."""
        return self.capture().encode()


def _separate(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Put commas between parts; those without a name have no place in an object."""
    comma = b""
    for part in parts:
        if part:
            yield comma
            yield part
            comma = b","
