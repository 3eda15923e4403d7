"""Metadata store in Java's `tieredStoreMetadata.json`, with a journal of sizes and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig, require_root
from tieredstore.contracts.metadata_store import FileSegmentMetadata, QueueMetadata, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Busy, Invalid
from tieredstore.metadata.journal import (
    gone_queue_line,
    gone_segment_line,
    gone_topic_line,
    queue_line,
    segment_line,
    topic_line,
)
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.kept_tables import KeptTables
from tieredstore.metadata.parts import C, Row, T, Table, Tables


class DefaultMetadataStore:
    """Metadata in a JSON file that Java brokers can read and write (`docs/formats/metadata.md`).
    Call `load` first. `load` and `close` change nothing on disk and do not require the writer
    epoch.

    A creation or deletion rewrites the file, or is written to the journal (`journal_structure`).
    Changes of sizes and times are always written to the journal. Concurrent changes, and all
    changes of a `batch()`, share a write. If a call raises Unavailable, its change stays in memory
    and is written by the next change or `flush`.

    `read_only`: never change anything on disk. Methods that change the tables then raise
    Invalid."""

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
        self.path = Path(path).absolute()
        self._broker_name = broker_name
        self._clock = clock
        self._limits = limits or Limits()
        self._kept = KeptTables(
            self.path, clock, operations or FileOperations(), self._limits, read_only=read_only
        )

    @classmethod
    def from_config(
        cls, config: StoreConfig, clock: Clock, *, read_only: bool = False
    ) -> DefaultMetadataStore:
        """Create the store from the settings `storePathRootDir` and `brokerName`."""
        path = require_root(config) / "config" / "tieredStoreMetadata.json"
        return cls(path, config.broker_name, clock, read_only=read_only)

    def load(self) -> None:
        self._kept.load()

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Set whether creations and deletions are recorded in the journal. The cost of a record
        does not depend on the size of the tables. A long journal is compacted into a new metadata
        file. Use it only if no Java broker opens the tier, because Java ignores the journal."""
        self._kept.journal_structure(is_wanted=is_wanted)

    def batch(self) -> AbstractContextManager[None]:
        """Write the changes made in the block together. This is not a transaction: if an exception
        is raised, earlier changes are kept."""
        return self._kept.batch()

    def topics(self) -> list[TopicMetadata]:
        with self._kept.lock:
            table = self._kept.tables.topics
        return [value.copy() for value in self._read(table, lambda row: [row.value])]

    def topic(self, topic: str) -> TopicMetadata | None:
        with self._kept.lock:
            row = self._kept.tables.topics.get(topic)
            return row.value.copy() if row is not None else None

    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        self._check_text(topic, "topic")
        with self._kept.lock_for_change():
            row = self._kept.tables.topics.get(topic)
            if row is None:
                self._kept.tables.topic_serial += 1
                row = Row(
                    TopicMetadata(
                        self._kept.tables.topic_serial,
                        topic,
                        reserve_time_hours=reserve_time_hours,
                        update_timestamp_ms=self._clock.now_ms(),
                    )
                )
                self._kept.tables.topics.add(topic, row)
                row.version = self._kept.note_change(partial(topic_line, row.value))
            result, version = row.value.copy(), row.version
        self._kept.settle(version)
        return result

    def update_topic(self, topic: TopicMetadata) -> None:
        """Update a topic, and set its update time to the current time. No-op for an unknown
        topic."""
        with self._kept.lock_for_change():
            row = self._kept.tables.topics.get(topic.topic)
            if row is None:
                return
            row.value = replace(topic, update_timestamp_ms=self._clock.now_ms())
            # an id that was given from outside must not be given again
            self._kept.tables.topic_serial = max(self._kept.tables.topic_serial, topic.topic_id)
            version = row.version = self._kept.note_change(partial(topic_line, row.value))
        self._kept.settle(version)

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        with self._kept.lock_for_change():
            row = self._kept.tables.topics.get(topic.topic)
            if row is None or row.value.topic_id != topic.topic_id:
                return False
            row.value = replace(
                row.value, reserve_time_hours=hours, update_timestamp_ms=self._clock.now_ms()
            )
            version = row.version = self._kept.note_change(partial(topic_line, row.value))
        self._kept.settle(version)
        return True

    def delete_topic(self, topic: str) -> None:
        with self._kept.lock_for_change():
            found = self._kept.tables.topics.remove(topic)
            found |= self._kept.tables.queues.remove(topic)
            if found:
                self._kept.note_change(partial(gone_topic_line, topic))
        self._kept.settle()

    def queues(self, topic: str) -> list[QueueMetadata]:
        with self._kept.lock:
            group = self._kept.tables.queues.get(topic)
            return [] if group is None else [row.value.copy() for row in group.values()]

    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None:
        with self._kept.lock:
            row = self._kept.tables.queue(topic, queue_id)
            return row.value.copy() if row is not None else None

    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        self._check_text(topic, "topic")
        if not 0 <= queue_id < 2**31:
            raise Invalid(f"topic {topic!r}: queue id {queue_id} is not from 0 to 2^31-1")
        with self._kept.lock_for_change():
            row = self._kept.tables.queue(topic, queue_id)
            if row is None:
                row = self._kept.tables.add_queue(
                    QueueMetadata(
                        topic, queue_id, self._broker_name, update_timestamp_ms=self._clock.now_ms()
                    )
                )
                row.version = self._kept.note_change(partial(queue_line, row.value, is_new=True))
            result, version = row.value.copy(), row.version
        self._kept.settle(version)
        return result

    def update_queue(self, queue: QueueMetadata) -> None:
        """Update a queue, and set its update time to the current time. No-op for an unknown
        queue."""
        with self._kept.lock_for_change():
            row = self._kept.tables.queue(queue.topic, queue.queue_id)
            if row is None:
                return
            row.value = replace(queue, update_timestamp_ms=self._clock.now_ms())
            self._kept.note_later(queue_line(row.value))
            version = row.version
        self._kept.settle(version)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        with self._kept.lock_for_change():
            group = self._kept.tables.queues.get(topic)
            if group is not None and group.take(queue_id):
                self._kept.note_change(partial(gone_queue_line, topic, queue_id))
        self._kept.settle()

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        with self._kept.lock:
            kinds = self._kept.tables.segments
            tables = list(kinds.values()) if type is None else [kinds[type]]
            if path is not None:
                found = [rows for table in tables if (rows := table.get(path)) is not None]
                return iter([rows[base].value.copy() for rows in found for base in sorted(rows)])
        return (
            value.copy()
            for table in tables
            for value in self._read(table, lambda rows: [rows[n].value for n in sorted(rows)])
        )

    def _read(self, table: Table[C], read: Callable[[C], list[T]]) -> Iterator[T]:
        """Read a table in parts, releasing the lock in between. An entry that changes during the
        call is returned in its old or its new state."""
        with self._kept.lock:
            parts = list(table.parts)
        for part in parts:
            with self._kept.lock:
                values = [value for content in part.names.values() for value in read(content)]
            yield from values

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None:
        with self._kept.lock:
            row = self._kept.tables.segment(id)
            return row.value.copy() if row is not None else None

    def put_segment(self, segment: FileSegmentMetadata) -> None:
        """Store the entry of a segment. Raises Busy if the file would exceed the maximum number of
        segments."""
        if segment.base_offset < 0 or segment.size < 0:
            # the file could not be read back with it
            text = f"segment {segment.id}: base offset and size {segment.size} must not be negative"
            raise Invalid(text, path=segment.path, offset=segment.base_offset)
        with self._kept.lock_for_change():
            row = self._kept.tables.find_segment(segment.path, segment.type, segment.base_offset)
            if row is None:
                row = self._add_segment(segment)
            else:
                self._refresh_segment(row, segment)
            version = row.version
        self._kept.settle(version)

    def delete_segment(self, id: SegmentId) -> None:
        with self._kept.lock_for_change():
            if self._kept.tables.remove_segment(id):
                self._kept.note_change(partial(gone_segment_line, id))
        self._kept.settle()

    def flush(self) -> None:
        self._kept.flush()

    def close(self) -> None:
        self._kept.close()

    def destroy(self) -> None:
        with self._kept.lock_for_change():
            # Java writes 0 here, so its next topic gets id 1. Ours does the same.
            self._kept.tables = Tables(topic_serial=0)
            self._kept.note_change()
        self._kept.settle()

    def _add_segment(self, segment: FileSegmentMetadata) -> Row[FileSegmentMetadata]:
        self._check_text(segment.path, "segment path")
        if self._kept.tables.segment_count >= self._limits.max_segments:
            raise Busy(
                f"{self.path}: {self._limits.max_segments} segments, no more are possible",
                path=str(self.path),
            )
        stored = segment.copy()
        stored.create_timestamp_ms = stored.create_timestamp_ms or self._clock.now_ms()
        row = self._kept.tables.add_segment(stored)
        row.version = self._kept.note_change(partial(segment_line, stored, is_new=True))
        return row

    def _refresh_segment(self, row: Row[FileSegmentMetadata], segment: FileSegmentMetadata) -> None:
        stored = segment.copy()
        stored.create_timestamp_ms = row.value.create_timestamp_ms
        if stored == row.value:
            return
        status_changed = stored.status != row.value.status
        row.value = stored
        if status_changed:
            row.version = self._kept.note_change(partial(segment_line, stored))
        else:
            self._kept.note_later(segment_line(stored))

    def _check_text(self, text: str, what: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what} {text!r} is not valid Unicode text") from None
        if not text:
            raise Invalid(f"{what} is empty")
