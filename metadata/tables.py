"""The tables of the metadata JSON in memory, and their encoding.

Each row keeps its encoded JSON until it changes: writing 10,000 segments then costs about 2 ms
instead of 15.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import orjson

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId

Extra: TypeAlias = dict[str, orjson.Fragment]
"""Fields that this version does not know, encoded, to be written back as they were."""

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

T = TypeVar("T", TopicMetadata, QueueMetadata, FileSegmentMetadata)


class Row(Generic[T]):
    """One entry. Assign `value` anew after changing it. version: the store's, of the last change
    that must be on disk before its call returns."""

    __slots__ = ("_encoded", "_extra", "_value", "version")

    def __init__(self, value: T, extra: Extra | None = None) -> None:
        self._value: T = value
        self._extra = extra
        self._encoded: orjson.Fragment | None = None
        self.version = 0

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        self._value = value
        self._encoded = None

    def encode(self) -> orjson.Fragment:
        if self._encoded is None:
            fields = _fields(self._value)
            if self._extra:
                fields.update(self._extra)
            self._encoded = orjson.Fragment(orjson.dumps(fields))
        return self._encoded


SegmentTable: TypeAlias = dict[str, dict[int, Row[FileSegmentMetadata]]]


def _fields(value: TopicMetadata | QueueMetadata | FileSegmentMetadata) -> dict[str, object]:
    """Java's field names, in its order."""
    if isinstance(value, FileSegmentMetadata):
        return {
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
    if isinstance(value, QueueMetadata):
        return {
            "queue": {
                "brokerName": value.broker_name,
                "queueId": value.queue_id,
                "topic": value.topic,
            },
            "minOffset": value.min_offset,
            "maxOffset": value.max_offset,
            "updateTimestamp": value.update_timestamp_ms,
        }
    return {
        "topicId": value.topic_id,
        "topic": value.topic,
        "status": value.status,
        "reserveTime": value.reserve_time_hours,
        "updateTimestamp": value.update_timestamp_ms,
    }


def _make_segment_tables() -> dict[FileSegmentType, SegmentTable]:
    return {type: {} for type in FileSegmentType}  # noqa: A001


@dataclass(slots=True)
class Tables:
    """All tables. Not thread-safe."""

    topics: dict[str, Row[TopicMetadata]] = field(default_factory=dict)
    queues: dict[str, dict[int, Row[QueueMetadata]]] = field(default_factory=dict)
    segments: dict[FileSegmentType, SegmentTable] = field(default_factory=_make_segment_tables)
    segment_count: int = 0
    topic_serial: int = NO_TOPIC_YET
    extra: Extra = field(default_factory=dict)

    def segment(self, id: SegmentId) -> Row[FileSegmentMetadata] | None:
        return self.segments[id.type].get(id.path, {}).get(id.base_offset)

    def add_segment(
        self, segment: FileSegmentMetadata, extra: Extra | None = None
    ) -> Row[FileSegmentMetadata]:
        rows = self.segments[segment.type].setdefault(segment.path, {})
        self.segment_count += segment.base_offset not in rows
        row = rows[segment.base_offset] = Row(segment, extra)
        return row

    def remove_segment(self, id: SegmentId) -> bool:
        """Remove a segment, and its path when no segment is left; tell whether the segment was
        there."""
        rows = self.segments[id.type].get(id.path, {})
        if rows.pop(id.base_offset, None) is None:
            return False
        self.segment_count -= 1
        if not rows:
            del self.segments[id.type][id.path]
        return True

    def encode(self) -> bytes:
        """Return Java's JSON with quoted integer keys, top-level fields in alphabetical order."""
        fields: dict[str, object] = {
            name: {
                path: {str(base): row.encode() for base, row in rows.items()}
                for path, rows in self.segments[type_].items()
            }
            for type_, name in SEGMENT_TABLES.items()
        }
        fields[QUEUE_TABLE] = {
            topic: {str(queue_id): row.encode() for queue_id, row in rows.items()}
            for topic, rows in self.queues.items()
        }
        fields[TOPIC_TABLE] = {topic: row.encode() for topic, row in self.topics.items()}
        fields[TOPIC_SERIAL] = self.topic_serial
        fields.update(self.extra)
        return orjson.dumps(dict(sorted(fields.items())))
