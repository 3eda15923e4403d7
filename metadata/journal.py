"""The journal beside the metadata JSON: what is newer than the snapshot. Sizes and times, and where
no Java broker reads the file, what there is: topics, queues and segments that came or went.

JSON lines. The first names the format version and the SHA-256 of the snapshot that it extends; a
journal of another snapshot says nothing. Each further line holds one entry's present values and
their CRC-32; the last line may be torn. Format: `docs/formats/metadata.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import AppendFile, FileOperations
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.crc import crc32
from tieredstore.metadata.parts import Row
from tieredstore.metadata.tables import Tables

FORMAT_VERSION = 2
"""With structure in it."""
SIZES_ALONE = 1
"""Format of a journal of sizes and times."""

_LOG = logging.getLogger(__name__)
_INT64 = range(-(2**63), 2**63)
_FORMATS = (SIZES_ALONE, FORMAT_VERSION)


def segment_line(segment: FileSegmentMetadata) -> bytes:
    """Make the line of a segment: size, status and times."""
    return _line(
        "segment",
        [
            segment.path,
            int(segment.type),
            segment.base_offset,
            segment.status,
            segment.size,
            segment.begin_timestamp_ms,
            segment.end_timestamp_ms,
            segment.seal_timestamp_ms,
        ],
    )


def queue_line(queue: QueueMetadata) -> bytes:
    """Make the line of a queue: offsets and update time."""
    return _line(
        "queue",
        [
            queue.topic,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.update_timestamp_ms,
        ],
    )


def new_segment_line(segment: FileSegmentMetadata) -> bytes:
    """Make the line of a segment that is new: all its values."""
    return _line(
        "new_segment",
        [
            segment.path,
            int(segment.type),
            segment.base_offset,
            segment.status,
            segment.size,
            segment.create_timestamp_ms,
            segment.begin_timestamp_ms,
            segment.end_timestamp_ms,
            segment.seal_timestamp_ms,
        ],
    )


def gone_segment_line(id: SegmentId) -> bytes:
    """Make the line of a segment that is there no more."""
    return _line("gone_segment", [id.path, int(id.type), id.base_offset])


def new_queue_line(queue: QueueMetadata) -> bytes:
    """Make the line of a queue that is new."""
    return _line(
        "new_queue",
        [
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.update_timestamp_ms,
        ],
    )


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


class Journal:
    """One journal file. Not thread-safe."""

    def __init__(self, path: Path, operations: FileOperations) -> None:
        self._path = path
        self._operations = operations
        self._file: AppendFile | None = None
        self._is_foreign = False
        self._is_named = False  # durably, in its folder
        self.size_bytes = 0
        self.format = SIZES_ALONE

    @property
    def path(self) -> Path:
        return self._path

    def replay(self, tables: Tables, digest: str, limit_bytes: int, *, read_only: bool) -> bool:
        """Apply what extends the snapshot `digest`; whether the file can be appended to.

        Changes nothing on disk. A journal of another snapshot, or with a bad line, cannot be
        appended to. Raises Invalid for a newer format version, Corrupt when the snapshot that it
        extends is lost, Unavailable when it cannot be read.
        """
        self.size_bytes = 0
        self._is_foreign = False
        data = self._read_lines(limit_bytes)
        if data is None:
            return False
        lines = data.split(b"\n")
        torn = lines.pop()  # empty when the last line is whole
        header = _header(lines[0]) if lines else None
        if header is not None:
            version = header["format"]
            if version > FORMAT_VERSION and not read_only:
                raise Invalid(
                    f"{self._path}: format version {version}, this program writes "
                    f"{FORMAT_VERSION}: a newer program wrote it",
                    path=str(self._path),
                )
            if not digest and header["snapshot"]:
                raise Corrupt(
                    f"{self._path} extends a metadata file that is not there: put back "
                    f"{self._path.stem} or its .bak, rebuild the metadata from the tier, or "
                    "remove the journal to begin an empty tier",
                    path=str(self._path),
                )
        if header is None or header["snapshot"] != digest or header["format"] not in _FORMATS:
            self._ignore("it does not extend the metadata file")
            return False
        self.format = header["format"]
        self.size_bytes = len(data)  # what is told before damage is to get to the file too
        for number, line in enumerate(lines[1:], 2):
            if not _apply(line, tables):
                self._ignore(f"line {number} is damaged")
                return False
        return not torn

    def find_snapshot(self, limit_bytes: int) -> str:
        """Find the SHA-256 of the snapshot that the journal extends, "" where it does not say.
        Raises Unavailable when it cannot be read."""
        try:
            data = self._read_lines(limit_bytes)
        except Corrupt:
            return ""  # `replay` says what is wrong
        header = _header(data.split(b"\n", 1)[0]) if data else None
        return "" if header is None else str(header["snapshot"])

    def start(self, digest: str, *, has_structure: bool = False) -> None:
        """Begin an empty journal of a snapshot; keep one that says nothing as `.ignored`.
        has_structure: whether its lines may tell what came and went. Raises OSError."""
        self.close()
        if self._is_foreign:
            with suppress(OSError):  # it is ignored by its content wherever it is
                self._operations.rename(
                    self._path, self._path.with_name(f"{self._path.name}.ignored")
                )
            self._is_foreign = False
        self.format = FORMAT_VERSION if has_structure else SIZES_ALONE
        self._is_named = False
        header = orjson.dumps({"format": self.format, "snapshot": digest}) + b"\n"
        self._file = self._operations.open_append(self._path, empty=True)
        self._file.write(header)
        self.size_bytes = len(header)

    def append(self, line: bytes) -> None:
        """Append a line. Raises OSError; the last line may be torn then."""
        if self._file is None:
            self._file = self._operations.open_append(self._path, empty=False)
        self._file.write(line)
        self.size_bytes += len(line)

    def sync(self) -> None:
        """Put all lines on stable storage, those that were found there too. Raises OSError: then
        none of them can be counted on."""
        if self._file is None:
            self._file = self._operations.open_append(self._path, empty=False)
        self._file.sync()
        if not self._is_named:
            self._operations.sync_directory(self._path.parent)
            self._is_named = True

    def close(self) -> None:
        """Close the file; `append` opens it again. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_lines(self, limit_bytes: int) -> bytes | None:
        try:
            size = self._operations.size(self._path)
            if size is None:
                return None
            if size > limit_bytes:
                raise Corrupt(
                    f"{self._path}: {size} bytes, more than the limit of {limit_bytes}",
                    path=str(self._path),
                )
            return self._operations.read(self._path)
        except OSError as error:
            raise translate_os_error(error, "read", self._path, invalid=RETRY_LATER) from error

    def _ignore(self, reason: str) -> None:
        _LOG.warning("%s is ignored from there on: %s", self._path, reason)
        self._is_foreign = True


def _header(line: bytes) -> dict[str, Any] | None:
    header = _parse(line)
    if not isinstance(header, dict) or not isinstance(header.get("snapshot"), str):
        return None
    return header if type(header.get("format")) is int else None


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def _apply(line: bytes, tables: Tables) -> bool:
    """Whether the line is whole; an entry that is not in the tables has no effect."""
    entry = _parse(line)
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


def _apply_segment(values: list[Any], tables: Tables) -> None:
    path = values[0] if values else None
    kind, base, status, size, begin, end, seal = _integers(values[1:], 7)
    row = tables.segment(SegmentId(str(path), FileSegmentType(kind), base))
    if row is None:
        return
    segment = row.value.copy()
    segment.status, segment.size = status, size
    segment.begin_timestamp_ms, segment.end_timestamp_ms = begin, end
    segment.seal_timestamp_ms = seal
    row.value = segment


def _apply_queue(values: list[Any], tables: Tables) -> None:
    topic = values[0] if values else None
    queue_id, minimum, maximum, updated = _integers(values[1:], 4)
    row = tables.queue(str(topic), queue_id)
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
    path = _text(values)
    kind, base, *rest = _integers(values[1:], 8)
    tables.add_segment(FileSegmentMetadata(path, FileSegmentType(kind), base, *rest))


def _remove_segment(values: list[Any], tables: Tables) -> None:
    path = _text(values)
    kind, base = _integers(values[1:], 2)
    tables.remove_segment(SegmentId(path, FileSegmentType(kind), base))


def _add_queue(values: list[Any], tables: Tables) -> None:
    topic, broker = _text(values), _text(values, 1)
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
    "segment": _apply_segment,
    "queue": _apply_queue,
    "new_segment": _add_segment,
    "gone_segment": _remove_segment,
    "new_queue": _add_queue,
    "gone_queue": _remove_queue,
    "topic": _put_topic,
    "gone_topic": _remove_topic,
}
"""What a line of a kind does; those of other kinds have no effect."""
