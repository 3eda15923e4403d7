"""Lines of the metadata's journal: one entry each, with its present values and their CRC-32.

Format: `docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.crc import crc32
from tieredstore.metadata.parts import Row
from tieredstore.metadata.tables import Tables

_INT64 = range(-(2**63), 2**63)
_CREATED_AT = 5
"""Where the time of creation is among the values of a new segment, which others lack."""
_BROKER_AT = 1
"""Where the broker's name is among those of a new queue."""


def segment_line(segment: FileSegmentMetadata, *, is_new: bool = False) -> bytes:
    """Make the line of a segment: size, status and times; all its values for a new one."""
    values: list[object] = [
        segment.path,
        int(segment.type),
        segment.base_offset,
        segment.status,
        segment.size,
        segment.begin_timestamp_ms,
        segment.end_timestamp_ms,
        segment.seal_timestamp_ms,
    ]
    if not is_new:
        return _line("segment", values)
    values.insert(_CREATED_AT, segment.create_timestamp_ms)
    return _line("new_segment", values)


def queue_line(queue: QueueMetadata, *, is_new: bool = False) -> bytes:
    """Make the line of a queue: offsets and update time; all its values for a new one."""
    values: list[object] = [
        queue.topic,
        queue.queue_id,
        queue.min_offset,
        queue.max_offset,
        queue.update_timestamp_ms,
    ]
    if not is_new:
        return _line("queue", values)
    values.insert(_BROKER_AT, queue.broker_name)
    return _line("new_queue", values)


def gone_segment_line(id: SegmentId) -> bytes:
    """Make the line of a segment that is there no more."""
    return _line("gone_segment", [id.path, int(id.type), id.base_offset])


def gone_queue_line(topic: str, queue_id: int) -> bytes:
    """Make the line of a queue that is there no more."""
    return _line("gone_queue", [topic, queue_id])


def topic_line(topic: TopicMetadata) -> bytes:
    """Make the line of a topic, a new one or one with other values."""
    return _line(
        "topic",
        [
            topic.topic,
            topic.topic_id,
            topic.status,
            topic.reserve_time_hours,
            topic.update_timestamp_ms,
        ],
    )


def gone_topic_line(topic: str) -> bytes:
    """Make the line of a topic that is there no more, nor its queues."""
    return _line("gone_topic", [topic])


def _line(kind: str, values: list[object]) -> bytes:
    encoded = orjson.dumps(values)
    return b'{"%s":%s,"crc":%d}\n' % (kind.encode(), encoded, crc32(encoded))


def parse_line(line: bytes) -> Any:
    """Parse JSON; None for what is none."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def apply_line(line: bytes, tables: Tables) -> bool:
    """Let the tables be as a line says, whether it is whole; an entry that is not in them has no
    effect."""
    entry = parse_line(line)
    if not isinstance(entry, dict) or len(entry) != 2:
        return False
    kind, values = next(iter(entry.items()))
    if not isinstance(values, list) or crc32(orjson.dumps(values)) != entry.get("crc"):
        return False
    change = _CHANGES.get(kind)
    try:
        if change is not None:
            change(values, tables)
    except (ValueError, TypeError):
        return False
    return True


def _integers(values: list[Any], count: int) -> Iterator[int]:
    if len(values) != count or not all(type(value) is int and value in _INT64 for value in values):
        raise ValueError("not the integers of an entry")
    return iter(values)


def _change_segment(values: list[Any], tables: Tables) -> None:
    segment = _read_segment([*values[:_CREATED_AT], 0, *values[_CREATED_AT:]])
    row = tables.segment(segment.id)
    if row is not None:
        segment.create_timestamp_ms = row.value.create_timestamp_ms
        row.value = segment


def _change_queue(values: list[Any], tables: Tables) -> None:
    topic = _text(values)
    queue_id, minimum, maximum, updated = _integers(values[1:], 4)
    row = tables.queue(topic, queue_id)
    if row is None:
        return
    row.value = QueueMetadata(
        row.value.topic, queue_id, row.value.broker_name, minimum, maximum, updated
    )


def _text(values: list[Any], at: int = 0) -> str:
    if at >= len(values) or not isinstance(values[at], str):
        raise ValueError("not the name of an entry")
    return str(values[at])


def _add_segment(values: list[Any], tables: Tables) -> None:
    tables.add_segment(_read_segment(values))


def _read_segment(values: list[Any]) -> FileSegmentMetadata:
    path = _text(values)
    kind, base, *rest = _integers(values[1:], 8)
    return FileSegmentMetadata(path, FileSegmentType(kind), base, *rest)


def _remove_segment(values: list[Any], tables: Tables) -> None:
    path = _text(values)
    kind, base = _integers(values[1:], 2)
    tables.remove_segment(SegmentId(path, FileSegmentType(kind), base))


def _add_queue(values: list[Any], tables: Tables) -> None:
    topic, broker = _text(values), _text(values, _BROKER_AT)
    queue_id, *rest = _integers(values[2:], 4)
    tables.add_queue(QueueMetadata(topic, queue_id, broker, *rest))


def _remove_queue(values: list[Any], tables: Tables) -> None:
    group = tables.queues.get(_text(values))
    (queue_id,) = _integers(values[1:], 1)
    if group is not None:
        group.take(queue_id)


def _put_topic(values: list[Any], tables: Tables) -> None:
    topic = _text(values)
    topic_id, *rest = _integers(values[1:], 4)
    value = TopicMetadata(topic_id, topic, *rest)
    tables.topic_serial = max(tables.topic_serial, topic_id)
    row = tables.topics.get(topic)
    if row is None:
        tables.topics.add(topic, Row(value))
    else:
        row.value = value


def _remove_topic(values: list[Any], tables: Tables) -> None:
    topic = _text(values)
    tables.topics.remove(topic)
    tables.queues.remove(topic)


_CHANGES: Final[Mapping[str, Callable[[list[Any], Tables], None]]] = {
    "segment": _change_segment,
    "queue": _change_queue,
    "new_segment": _add_segment,
    "gone_segment": _remove_segment,
    "new_queue": _add_queue,
    "gone_queue": _remove_queue,
    "topic": _put_topic,
    "gone_topic": _remove_topic,
}
"""What a line of a kind does; those of other kinds have no effect."""
