"""Journal of the changes since the last metadata JSON file (the snapshot). The journal records
sizes and times, and also creations and deletions if no Java broker reads the metadata file. It
consists of JSON lines. The header has the format version and the SHA-256 of the snapshot. A journal
of another snapshot is ignored. Each further line has the current values of one entry and their
CRC-32. The last line may be torn. Format: `docs/formats/metadata.md`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from tieredstore.contracts.metadata_store import FileSegmentMetadata, QueueMetadata, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import AppendFile, FileOperations, cut_zeros
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.crc import crc32
from tieredstore.metadata.parts import Row, Tables
from tieredstore.metadata.snapshot_files import Snapshot

_INT64 = range(-(2**63), 2**63)
_CREATED_AT = 5
"""Index of the creation time in a new segment's journal line. Other lines have no creation time."""
_BROKER_AT = 1
"""Index of the broker name in a new queue's journal line."""


def segment_line(segment: FileSegmentMetadata, *, is_new: bool = False) -> bytes:
    """Return the journal line of a segment. A new segment is written with all values, an existing
    one only with its size, status and times."""
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
    """Return the journal line of a queue. A new queue is written with all values, an existing one
    only with its offsets and update time."""
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
    """Return the journal line of a deleted segment."""
    return _line("gone_segment", [id.path, int(id.type), id.base_offset])


def gone_queue_line(topic: str, queue_id: int) -> bytes:
    """Return the journal line of a deleted queue."""
    return _line("gone_queue", [topic, queue_id])


def topic_line(topic: TopicMetadata) -> bytes:
    """Return the journal line of a new or changed topic."""
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
    """Return the journal line of a topic deleted with its queues."""
    return _line("gone_topic", [topic])


def _line(kind: str, values: list[object]) -> bytes:
    encoded = orjson.dumps(values)
    return b'{"%s":%s,"crc":%d}\n' % (kind.encode(), encoded, crc32(encoded))


def parse_line(line: bytes) -> object:
    """Parse a JSON line. Returns None for invalid JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def apply_line(line: bytes, tables: Tables) -> bool:
    """Apply a journal line to the tables. Returns False if the line is damaged. A line of an
    unknown kind or about an unknown entry has no effect."""
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


def _change_segment(values: list[object], tables: Tables) -> None:
    segment = _read_segment([*values[:_CREATED_AT], 0, *values[_CREATED_AT:]])
    row = tables.segment(segment.id)
    if row is not None:
        segment.create_timestamp_ms = row.value.create_timestamp_ms
        row.value = segment


def _change_queue(values: list[object], tables: Tables) -> None:
    topic = _text(values)
    queue_id, minimum, maximum, updated = _integers(values[1:], 4)
    row = tables.queue(topic, queue_id)
    if row is None:
        return
    row.value = QueueMetadata(
        row.value.topic, queue_id, row.value.broker_name, minimum, maximum, updated
    )


def _text(values: list[object], at: int = 0) -> str:
    if at >= len(values) or not isinstance(values[at], str):
        raise ValueError("not the name of an entry")
    return str(values[at])


def _add_segment(values: list[object], tables: Tables) -> None:
    tables.add_segment(_read_segment(values))


def _read_segment(values: list[object]) -> FileSegmentMetadata:
    path = _text(values)
    kind, base, *rest = _integers(values[1:], 8)
    return FileSegmentMetadata(path, FileSegmentType(kind), base, *rest)


def _remove_segment(values: list[object], tables: Tables) -> None:
    path = _text(values)
    kind, base = _integers(values[1:], 2)
    tables.remove_segment(SegmentId(path, FileSegmentType(kind), base))


def _add_queue(values: list[object], tables: Tables) -> None:
    topic, broker = _text(values), _text(values, _BROKER_AT)
    queue_id, *rest = _integers(values[2:], 4)
    tables.add_queue(QueueMetadata(topic, queue_id, broker, *rest))


def _remove_queue(values: list[object], tables: Tables) -> None:
    group = tables.queues.get(_text(values))
    (queue_id,) = _integers(values[1:], 1)
    if group is not None:
        group.take(queue_id)


def _put_topic(values: list[object], tables: Tables) -> None:
    topic = _text(values)
    topic_id, *rest = _integers(values[1:], 4)
    value = TopicMetadata(topic_id, topic, *rest)
    tables.topic_serial = max(tables.topic_serial, topic_id)
    row = tables.topics.get(topic)
    if row is None:
        tables.topics.add(topic, Row(value))
    else:
        row.value = value


def _remove_topic(values: list[object], tables: Tables) -> None:
    topic = _text(values)
    tables.topics.remove(topic)
    tables.queues.remove(topic)


_CHANGES: Final[Mapping[str, Callable[[list[object], Tables], None]]] = {
    "segment": _change_segment,
    "queue": _change_queue,
    "new_segment": _add_segment,
    "gone_segment": _remove_segment,
    "new_queue": _add_queue,
    "gone_queue": _remove_queue,
    "topic": _put_topic,
    "gone_topic": _remove_topic,
}
"""Functions that apply a journal line, by the line's kind. Lines of other kinds are ignored."""


FORMAT_VERSION = 2
"""Format version of journals with creations and deletions."""
SIZES_ALONE = 1
"""Format version of journals with sizes and times only."""

_LOG = logging.getLogger(__name__)
_FORMATS = (SIZES_ALONE, FORMAT_VERSION)


class Journal:
    """One journal file. Not thread-safe."""

    def __init__(self, path: Path, operations: FileOperations) -> None:
        self.path = path
        self._operations = operations
        self._file: AppendFile | None = None
        self._is_foreign = False
        self.is_superseded = False
        self._is_named = False  # durably, in its folder
        self.size_bytes = 0
        self.format = SIZES_ALONE

    def replay(
        self,
        snapshot: Snapshot,
        find_former: Callable[[], str],
        limit_bytes: int,
        *,
        read_only: bool,
    ) -> bool:
        """Apply the journal to a snapshot without changing anything on disk. Returns False if no
        lines can be appended, for example because the journal belongs to another snapshot or has an
        invalid line.

        `find_former`: returns the digest of the previous snapshot. Raises Invalid for a newer
        format version, Corrupt if the journal records creations or deletions since a lost snapshot,
        Unavailable if it cannot be read."""
        self.size_bytes = 0
        self._is_foreign = self.is_superseded = False
        found = self._read_lines(limit_bytes)
        if found is None:
            return False
        data = cut_zeros(found)
        lines = data.split(b"\n")
        torn = lines.pop() or data != found  # empty if the last line is whole
        header = _header(lines[0]) if lines else None
        if header is not None:
            version = header["format"]
            if version > FORMAT_VERSION and not read_only:
                raise Invalid(
                    f"{self.path}: format version {version}, this program writes "
                    f"{FORMAT_VERSION}: a newer program wrote it",
                    path=str(self.path),
                )
            self._check_snapshot(header, snapshot, find_former, read_only=read_only)
        if (
            header is None
            or header["snapshot"] != snapshot.digest
            or header["format"] not in _FORMATS
        ):
            self._ignore("it does not extend the metadata file")
            self.is_superseded = True
            return False
        self.format = header["format"]
        self.size_bytes = len(data)  # lines in front of damage must reach the file too
        for number, line in enumerate(lines[1:], 2):
            if not apply_line(line, snapshot.tables):
                self._ignore(f"line {number} is damaged")
                return False
        return not torn

    def _check_snapshot(
        self,
        header: dict[str, Any],
        snapshot: Snapshot,
        find_former: Callable[[], str],
        *,
        read_only: bool,
    ) -> None:
        """Raise Corrupt if the metadata file that the journal extends was lost. If a process is
        killed after writing a new metadata file, the old journal remains. The new file contains its
        changes, so that journal is ignored."""
        extended = header["snapshot"]
        if extended == snapshot.digest:
            return
        if not snapshot.digest:
            is_lost = bool(extended)
        elif header["format"] < FORMAT_VERSION:
            return  # sizes and times, which the tier has too
        else:
            is_lost = snapshot.is_backup or not (read_only or extended == find_former())
        if is_lost:
            raise Corrupt(
                f"{self.path} extends a missing metadata file (SHA-256 {extended[:16]}…). Nothing "
                f"was changed. Put back {self.path.stem} or its .bak, or rebuild the metadata "
                "from the tier (`tieredstore rebuild metadata --force`). Or remove the journal, "
                "and lose its topics, queues and segments",
                path=str(self.path),
            )

    def find_snapshot(self, limit_bytes: int) -> str:
        """Return the SHA-256 of the snapshot that the journal extends, or "" if it names none.
        Raises Unavailable if the journal cannot be read."""
        try:
            data = self._read_lines(limit_bytes)
        except Corrupt:
            return ""  # `replay` reports the fault
        header = _header(data.split(b"\n", 1)[0]) if data else None
        return "" if header is None else str(header["snapshot"])

    def expect_replacement(self) -> None:
        """Durably remove a journal that does not extend the current metadata file. Call it before
        writing a new metadata file. Otherwise readers would conclude that the journal's metadata
        file was lost. Raises OSError."""
        if self.is_superseded:
            self._set_aside()
            self._operations.sync_directory(self.path.parent)
            self.is_superseded = False
        elif self.format == FORMAT_VERSION and self.size_bytes and not self._is_named:
            with suppress(OSError):  # only a power loss could bring an older one back
                self.sync()

    def start(self, digest: str, *, has_structure: bool = False) -> None:
        """Start an empty journal for a newly written snapshot. A previous journal that was ignored
        is renamed to `.ignored`. `has_structure`: True if lines may record creations and deletions.
        Raises OSError."""
        self.close()
        self.is_superseded = True
        if self._is_foreign:
            with suppress(OSError):  # its content makes every reader ignore it
                self._set_aside()
        self.format = FORMAT_VERSION if has_structure else SIZES_ALONE
        self._is_named = False
        header = orjson.dumps({"format": self.format, "snapshot": digest}) + b"\n"
        self._file = self._operations.open_append(self.path, empty=True)
        self._file.write(header)
        self.size_bytes = len(header)
        self.is_superseded = False

    def _set_aside(self) -> None:
        if self._operations.size(self.path) is not None:
            self._operations.rename(self.path, self.path.with_name(f"{self.path.name}.ignored"))
        self._is_foreign = False

    def append(self, line: bytes) -> None:
        """Append a line. Raises OSError. After an error the last line may be torn."""
        if self._file is None:
            self._file = self._operations.open_append(self.path, empty=False)
        self._file.write(line)
        self.size_bytes += len(line)

    def sync(self) -> None:
        """Sync all lines to disk, including earlier ones. Raises OSError. After an error no line
        counts as durable."""
        if self._file is None:
            self._file = self._operations.open_append(self.path, empty=False)
        self._file.sync()
        if not self._is_named:
            self._operations.sync_directory(self.path.parent)
            self._is_named = True

    def close(self) -> None:
        """Close the file. `append` reopens it. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_lines(self, limit_bytes: int) -> bytes | None:
        try:
            size = self._operations.size(self.path)
            if size is None:
                return None
            if size > limit_bytes:
                raise Corrupt(
                    f"{self.path}: {size} bytes, more than the limit of {limit_bytes}",
                    path=str(self.path),
                )
            return self._operations.read(self.path)
        except OSError as error:
            raise translate_os_error(error, "read", self.path, invalid=RETRY_LATER) from error

    def _ignore(self, reason: str) -> None:
        _LOG.warning("%s is ignored from there on: %s", self.path, reason)
        self._is_foreign = True


def _header(line: bytes) -> dict[str, Any] | None:
    header = parse_line(line)
    if not isinstance(header, dict) or not isinstance(header.get("snapshot"), str):
        return None
    return header if type(header.get("format")) is int else None
