"""`DefaultMetadataStore`: Java's `tieredStoreMetadata.json`, with a journal of sizes and times."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Busy, Corrupt, Invalid, Unavailable
from tieredstore.metadata.journal import (
    FORMAT_VERSION,
    Journal,
    gone_queue_line,
    gone_segment_line,
    gone_topic_line,
    new_queue_line,
    new_segment_line,
    queue_line,
    segment_line,
    topic_line,
)
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.parts import C, CapturedPart, Row, T, Table
from tieredstore.metadata.snapshot_files import SnapshotFiles
from tieredstore.metadata.tables import Tables

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig

_LOG = logging.getLogger(__name__)
_PARTS_AT_ONCE = 8
"""Parts of tables that are noted for encoding under the lock: some 2,000 rows, 1 ms."""
_LOADS = 10
"""How often a load reads files that another process replaces meanwhile, once per 8 MiB of changes.
"""
_JOURNAL_READ_FACTOR = 4
"""A journal is compacted at its limit; one that is this much larger was not written by us."""


class DefaultMetadataStore:
    """Metadata in one JSON file that Java brokers read and write, format
    `docs/formats/metadata.md`.

    `load` comes first. Changes of structure replace the file (several threads, or all of one
    `batch()`, share a write), or go to the journal (`journal_structure`); changes of sizes and
    times always go there. When a call raises Unavailable, its change is in memory and the next
    change or `flush` writes it. `load` and
    `close` change nothing on disk: they need no right to write.

    read_only: never changes anything on disk; changing methods raise Invalid.
    """

    def __init__(
        self,
        path: str | Path,
        broker_name: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        read_only: bool = False,
        limits: Limits | None = None,
        operations: FileOperations | None = None,
    ) -> None:
        self._path = Path(path).absolute()
        self._broker_name = broker_name
        self._clock = clock
        self._read_only = read_only
        self._limits = limits or Limits()
        operations = operations or FileOperations()
        self._files = SnapshotFiles(self._path, operations, self._limits, clock)
        self._journal = Journal(self._path.with_name(f"{self._path.name}.journal"), operations)
        self._operations = operations
        self._tables = Tables()
        self._lock = threading.RLock()  # tables, versions, journal
        self._file_lock = threading.Lock()  # one snapshot at a time; taken before _lock
        self._batch = threading.local()
        self._version = 0
        self._structure_version = 0  # the last change that must be in the main file
        self._stored_version = 0  # what the main file holds
        self._synced_version = 0  # what is on disk, there or in the journal
        self._rewrite_version = 0  # the last change that no journal can tell
        self._loaded_version = 0  # all that was found, which must be on disk before anything counts
        self._journals_structure = False
        self._loaded = False
        self._loaded_as: object = None  # which files, and what they made: see `load`
        self._journal_usable = False
        self._compaction_due = False
        self._carried: bytearray | None = None  # journal lines while a snapshot is written

    @classmethod
    def from_config(
        cls, config: StoreConfig, clock: Clock, *, read_only: bool = False
    ) -> DefaultMetadataStore:
        """Make the store of `storePathRootDir` and `brokerName`."""
        path = Path(config.store_path_root_dir) / "config" / "tieredStoreMetadata.json"
        return cls(path, config.broker_name, clock, read_only=read_only)

    @property
    def path(self) -> Path:
        return self._path

    def load(self) -> None:
        with self._file_lock, self._lock:
            stamps = self._stamps()
            if self._loaded and self._loaded_as == (stamps, self._version):
                return  # nobody has changed anything since
            self._journal.close()
            for left in reversed(range(_LOADS)):
                before = stamps
                try:
                    self._load()
                    stamps = self._stamps()
                except Corrupt:
                    stamps = self._stamps()
                    if not left or stamps == before:
                        raise
                else:
                    # A new file between the two: the journal tells only what came after it.
                    if stamps[:2] == before[:2]:
                        break
            else:
                raise Unavailable(f"{self._path}: replaced each time it was read: try again")
            self._loaded_as = (before, self._version)

    def _load(self) -> None:
        """Read the file, then the journal."""
        limit_bytes = self._limits.max_journal_bytes * _JOURNAL_READ_FACTOR
        snapshot = self._files.load(self._journal.find_snapshot(limit_bytes))
        self._tables = snapshot.tables
        self._journal_usable = self._journal.replay(
            self._tables,
            snapshot.digest,
            limit_bytes,
            read_only=self._read_only,
        )
        self._loaded = True
        self._compaction_due = False
        self._version += 1
        self._structure_version = self._stored_version = self._version
        self._synced_version = self._rewrite_version = self._version
        if self._journal.size_bytes:
            self._version += 1  # `flush` brings it to the main file
            if self._journal.format == FORMAT_VERSION and not self._read_only:
                # A process that was killed may have told there what is not on disk yet.
                self._structure_version = self._version
        self._loaded_version = self._structure_version

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Let the journal tell what comes and goes, which takes no longer however much there is; a
        new file is written when the journal is long. Only where no Java broker opens the tier,
        which knows of no journal."""
        with self._lock:
            self._journals_structure = is_wanted

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        try:
            paths = (*self._files.paths, self._journal.path)
            return [self._operations.stamp(path) for path in paths]
        except OSError as error:
            raise translate_os_error(error, "stat", self._path, invalid=RETRY_LATER) from error

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the changes of the block once. Not a transaction: what was changed before an
        exception stays changed."""
        self._batch.depth = self._depth() + 1
        try:
            yield
        except Exception:
            self._batch.depth -= 1
            self._settle()
            raise
        except BaseException:
            self._batch.depth -= 1
            raise
        self._batch.depth -= 1
        self._settle()

    def topics(self) -> list[TopicMetadata]:
        with self._lock:
            table = self._tables.topics
        return [replace(value) for value in self._read(table, lambda row: [row.value])]

    def topic(self, topic: str) -> TopicMetadata | None:
        with self._lock:
            row = self._tables.topics.get(topic)
            return replace(row.value) if row is not None else None

    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        self._check_text(topic, "topic")
        with self._lock_for_change():
            row = self._tables.topics.get(topic)
            if row is None:
                self._tables.topic_serial += 1
                row = Row(
                    TopicMetadata(
                        self._tables.topic_serial,
                        topic,
                        reserve_time_hours=reserve_time_hours,
                        update_timestamp_ms=self._clock.now_ms(),
                    )
                )
                self._tables.topics.add(topic, row)
                row.version = self._note_change(topic_line(row.value))
            result, version = replace(row.value), row.version
        self._settle(version)
        return result

    def update_topic(self, topic: TopicMetadata) -> None:
        """Give the stored entry these values and the present time; do nothing for an unknown
        topic."""
        with self._lock_for_change():
            row = self._tables.topics.get(topic.topic)
            if row is None:
                return
            row.value = replace(topic, update_timestamp_ms=self._clock.now_ms())
            # an id that was given from outside must not be given again
            self._tables.topic_serial = max(self._tables.topic_serial, topic.topic_id)
            version = row.version = self._note_change(topic_line(row.value))
        self._settle(version)

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        with self._lock_for_change():
            row = self._tables.topics.get(topic.topic)
            if row is None or row.value.topic_id != topic.topic_id:
                return False
            row.value = replace(
                row.value, reserve_time_hours=hours, update_timestamp_ms=self._clock.now_ms()
            )
            version = row.version = self._note_change(topic_line(row.value))
        self._settle(version)
        return True

    def delete_topic(self, topic: str) -> None:
        with self._lock_for_change():
            found = self._tables.topics.remove(topic)
            found |= self._tables.queues.remove(topic)
            if found:
                self._note_change(gone_topic_line(topic))
        self._settle()

    def queues(self, topic: str) -> list[QueueMetadata]:
        with self._lock:
            group = self._tables.queues.get(topic)
            return [] if group is None else [replace(row.value) for row in group.values()]

    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None:
        with self._lock:
            row = self._tables.queue(topic, queue_id)
            return replace(row.value) if row is not None else None

    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        self._check_text(topic, "topic")
        if not 0 <= queue_id < 2**31:
            raise Invalid(f"topic {topic!r}: queue id {queue_id} is not from 0 to 2^31-1")
        with self._lock_for_change():
            row = self._tables.queue(topic, queue_id)
            if row is None:
                row = self._tables.add_queue(
                    QueueMetadata(
                        topic,
                        queue_id,
                        self._broker_name,
                        update_timestamp_ms=self._clock.now_ms(),
                    )
                )
                row.version = self._note_change(new_queue_line(row.value))
            result, version = replace(row.value), row.version
        self._settle(version)
        return result

    def update_queue(self, queue: QueueMetadata) -> None:
        """Give the stored entry these values and the present time; do nothing for an unknown
        queue."""
        with self._lock_for_change():
            row = self._tables.queue(queue.topic, queue.queue_id)
            if row is None:
                return
            row.value = replace(queue, update_timestamp_ms=self._clock.now_ms())
            self._journal_change(queue_line(row.value))
            version = row.version
        self._settle(version)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        with self._lock_for_change():
            group = self._tables.queues.get(topic)
            if group is not None and group.take(queue_id):
                self._note_change(gone_queue_line(topic, queue_id))
        self._settle()

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        with self._lock:
            tables = [
                table for kind, table in self._tables.segments.items() if type in (None, kind)
            ]
            if path is not None:
                found = [rows for table in tables if (rows := table.get(path)) is not None]
                return iter([rows[base].value.copy() for rows in found for base in sorted(rows)])
        return iter(
            [
                value.copy()
                for table in tables
                for value in self._read(table, lambda rows: [rows[n].value for n in sorted(rows)])
            ]
        )

    def _read(self, table: Table[C], read: Callable[[C], list[T]]) -> Iterator[T]:
        """Read a table, a part of it at a time: others have the lock in between. What is changed
        meanwhile is there as it was or as it is."""
        with self._lock:
            parts = list(table.parts)
        for part in parts:
            with self._lock:
                values = [value for content in part.names.values() for value in read(content)]
            yield from values

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None:
        with self._lock:
            row = self._tables.segment(id)
            return row.value.copy() if row is not None else None

    def put_segment(self, segment: FileSegmentMetadata) -> None:
        """Store a segment's entry. Raises Busy when the file would hold more segments than it may
        be read with."""
        _check_numbers(segment)
        with self._lock_for_change():
            row = self._tables.segment(segment.id)
            if row is None:
                row = self._add_segment(segment)
            else:
                self._refresh_segment(row, segment)
            version = row.version
        self._settle(version)

    def delete_segment(self, id: SegmentId) -> None:
        with self._lock_for_change():
            if self._tables.remove_segment(id):
                self._note_change(gone_segment_line(id))
        self._settle()

    def flush(self) -> None:
        if self._read_only:
            return
        with self._lock:
            version = self._version
        if version > self._stored_version:
            self._store(version)

    def close(self) -> None:
        with self._lock:
            self._journal.close()

    def destroy(self) -> None:
        with self._lock_for_change():
            # Java writes 0 here, so its next topic gets id 1; so does ours
            self._tables = Tables(topic_serial=0)
            self._note_change()
        self._settle()

    def _add_segment(self, segment: FileSegmentMetadata) -> Row[FileSegmentMetadata]:
        self._check_text(segment.path, "segment path")
        if self._tables.segment_count >= self._limits.max_segments:
            raise Busy(
                f"{self._path}: {self._limits.max_segments} segments, no more are possible",
                path=str(self._path),
            )
        stored = segment.copy()
        stored.create_timestamp_ms = stored.create_timestamp_ms or self._clock.now_ms()
        row = self._tables.add_segment(stored)
        row.version = self._note_change(new_segment_line(stored))
        return row

    def _refresh_segment(self, row: Row[FileSegmentMetadata], segment: FileSegmentMetadata) -> None:
        stored = replace(segment, create_timestamp_ms=row.value.create_timestamp_ms)
        if stored == row.value:
            return
        status_changed = stored.status != row.value.status
        row.value = stored
        if status_changed:
            row.version = self._note_change(segment_line(stored))
        else:
            self._journal_change(segment_line(stored))

    @contextmanager
    def _lock_for_change(self) -> Iterator[None]:
        if self._read_only:
            raise Invalid(f"{self._path} was opened read-only", path=str(self._path))
        if not self._loaded:
            # writing now would replace what is there by next to nothing
            raise Invalid(f"{self._path}: load() must come before changes", path=str(self._path))
        with self._lock:
            yield

    def _note_change(self, line: bytes | None = None) -> int:
        """A change that must be on disk before its call returns: its version. line: what tells it
        in a journal; None: it takes a new file."""
        self._version += 1
        self._structure_version = self._version
        is_told = line is not None and self._journals_structure
        if not is_told or self._journal.format != FORMAT_VERSION or not self._add_line(line):
            self._rewrite_version = self._version
        return self._version

    def _journal_change(self, line: bytes) -> None:
        """A change that may follow later: it goes to the journal."""
        self._version += 1
        if not self._add_line(line):
            self._compaction_due = True

    def _add_line(self, line: bytes | None) -> bool:
        """Whether the journal has it: not where that is full, or cannot be written to."""
        assert line is not None
        if self._carried is not None:
            # Behind the limit all that follows is refused, here and by the journal that begins.
            if len(self._carried) > self._limits.max_journal_bytes:
                return False
            self._carried += line
            return True
        if not self._journal_usable or self._journal.size_bytes > self._limits.max_journal_bytes:
            return False
        try:
            self._journal.append(line)
        except OSError as error:
            _LOG.warning("%s: cannot append to the journal: %s", self._path, error)
            self._journal_usable = False
            return False
        return True

    def _depth(self) -> int:
        return getattr(self._batch, "depth", 0)

    def _settle(self, version: int | None = None) -> None:
        """Outside a batch: have that version (by default the last change of structure) on disk.

        Also when the call changed nothing: an earlier one may have failed to write its change, or
        may be about to.
        """
        if self._depth():
            return
        with self._lock:
            wanted = self._structure_version if version is None else version
            wanted = max(wanted, self._loaded_version)
            is_full = self._journal.size_bytes > self._limits.max_journal_bytes
            due, latest = self._compaction_due or is_full, self._version
        if wanted > self._synced_version and not self._sync(wanted):
            self._store(wanted)
        elif due:
            try:
                self._store(latest)
            except Unavailable as error:  # sizes and times may follow later
                _LOG.warning("%s: the journal cannot be compacted yet: %s", self._path, error)

    def _sync(self, wanted: int) -> bool:
        """Bring that version to disk by the journal; False where the file has to be written."""
        with self._file_lock:
            if self._synced_version >= wanted:
                return True
            with self._lock:
                version = self._version
                if not self._journal_usable or self._rewrite_version > self._stored_version:
                    return False
            try:
                self._journal.sync()
            except OSError as error:
                # The system may call the next sync a success, whatever became of the lines.
                _LOG.warning("%s: cannot sync the journal: %s", self._path, error)
                with self._lock:
                    self._journal_usable = False
                return False
            self._synced_version = version
            return True

    def _store(self, wanted: int) -> None:
        """Write the main file unless another thread has, up to version `wanted`."""
        with self._file_lock:
            if self._stored_version >= wanted:
                return
            with self._lock:
                tables = self._tables
            self._encode_stale(tables)
            with self._lock:
                image = self._tables.capture()
                version = self._version
                self._carried = bytearray()
            digest = None
            try:
                data = image.encode()
                with self._lock:
                    image.keep()
                digest = self._files.replace(data)
            finally:
                with self._lock:
                    carried, self._carried = bytes(self._carried or b""), None
                    self._journal_usable = False
                    if digest is not None:
                        self._stored_version = self._synced_version = version
                        self._compaction_due = False
                        self._start_journal(digest, carried)

    def _encode_stale(self, tables: Tables) -> None:
        """Encode what has changed, little by little: nobody waits for the lock for long, and little
        is left for the moment at which all must be as it was at one time."""
        while True:
            with self._lock:
                stale = [CapturedPart(part) for part in tables.find_stale(_PARTS_AT_ONCE)]
            for part in stale:
                part.encode()
            with self._lock:
                for part in stale:
                    part.keep()
            if len(stale) < _PARTS_AT_ONCE:
                return

    def _start_journal(self, digest: str, lines: bytes) -> None:
        try:
            self._journal.start(digest, has_structure=self._journals_structure)
            if lines:
                self._journal.append(lines)
        except OSError as error:
            _LOG.warning("%s: cannot start the journal: %s", self._path, error)
            return
        self._journal_usable = True

    def _check_text(self, text: str, what: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what} {text!r} is not valid Unicode text") from None
        if not text:
            raise Invalid(f"{what} is empty")


def _check_numbers(segment: FileSegmentMetadata) -> None:
    """Raise Invalid for what the file could not be read back with."""
    if segment.base_offset < 0 or segment.size < 0:
        raise Invalid(
            f"segment {segment.id}: base offset and size {segment.size} must not be negative",
            path=segment.path,
            offset=segment.base_offset,
        )
