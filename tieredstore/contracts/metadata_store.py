"""MetadataStore: which topics, queues and segments a tier has (`docs/formats/metadata.md`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tieredstore.contracts.segment import FileSegmentType, SegmentId

NEVER_WRITTEN_MS = 2**63 - 1
"""Begin and end timestamp of a segment to which nothing was appended (Java's Long.MAX_VALUE)."""


@dataclass(slots=True)
class TopicMetadata:
    """reserve_time_hours: retention of the topic, -1 for the store's default."""

    topic_id: int
    topic: str
    status: int = 0
    reserve_time_hours: int = -1
    update_timestamp_ms: int = 0

    def copy(self) -> TopicMetadata:
        """Copy the entry, as `FileSegmentMetadata.copy` does."""
        return TopicMetadata(
            self.topic_id,
            self.topic,
            self.status,
            self.reserve_time_hours,
            self.update_timestamp_ms,
        )


@dataclass(slots=True)
class QueueMetadata:
    """min_offset and max_offset stay -1 in files that brokers write."""

    topic: str
    queue_id: int
    broker_name: str
    min_offset: int = -1
    max_offset: int = -1
    update_timestamp_ms: int = 0

    def copy(self) -> QueueMetadata:
        """Copy the entry, as `FileSegmentMetadata.copy` does."""
        return QueueMetadata(
            self.topic,
            self.queue_id,
            self.broker_name,
            self.min_offset,
            self.max_offset,
            self.update_timestamp_ms,
        )


@dataclass(slots=True)
class FileSegmentMetadata:
    """One segment: size in committed bytes; times in epoch ms, NEVER_WRITTEN_MS while empty."""

    path: str
    type: FileSegmentType
    base_offset: int
    status: int = 0
    size: int = 0
    create_timestamp_ms: int = 0
    begin_timestamp_ms: int = NEVER_WRITTEN_MS
    end_timestamp_ms: int = NEVER_WRITTEN_MS
    seal_timestamp_ms: int = 0

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.path, self.type, self.base_offset)

    def copy(self) -> FileSegmentMetadata:
        """Copy the entry, spelled out: `dataclasses.replace` takes five times as long, and opening
        a tier copies each entry several times."""
        return FileSegmentMetadata(
            self.path,
            self.type,
            self.base_offset,
            self.status,
            self.size,
            self.create_timestamp_ms,
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.seal_timestamp_ms,
        )


@runtime_checkable
class MetadataStore(Protocol):
    """Thread-safe. Objects returned are copies; changes go through the methods.

    Creations, rolls, deletions and topic ids are on disk when the call (or the outermost
    `batch()`) returns; sizes and times may follow later (`flush` forces them).
    """

    def load(self) -> None:
        """Read what is stored, and change nothing there; raises Corrupt (a bad file is kept aside
        when it is replaced, never deleted)."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """Group changes into one write at the end of the block."""
        ...

    def topics(self) -> list[TopicMetadata]: ...
    def topic(self, topic: str) -> TopicMetadata | None: ...
    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        """Add a topic with the next topic id; return the existing entry unchanged if there is
        one."""
        ...

    def update_topic(self, topic: TopicMetadata) -> None:
        """Replace the entry of a topic, its id too; do nothing for an unknown topic."""
        ...

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        """Give the topic of that name and that id another retention, at the present time; return
        False, and change nothing, when there is none: it was deleted since, and perhaps made
        again."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Drop the topic and its queue table; segment entries are the caller's."""
        ...

    def queues(self, topic: str) -> list[QueueMetadata]: ...
    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None: ...
    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        """Add a queue; return the existing entry unchanged if there is one."""
        ...

    def update_queue(self, queue: QueueMetadata) -> None: ...
    def delete_queue(self, topic: str, queue_id: int) -> None: ...

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        """Yield entries of a path and/or type, by ascending base offset within a path."""
        ...

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None: ...
    def put_segment(self, segment: FileSegmentMetadata) -> None:
        """Insert, or refresh size, status and times of the stored entry (its create timestamp
        stays)."""
        ...

    def delete_segment(self, id: SegmentId) -> None: ...

    def flush(self) -> None:
        """Write everything known to the main file."""
        ...

    def close(self) -> None:
        """Let go of what is open. Writes nothing (`flush` does): whoever closes may have lost the
        right to write, or never had it. Idempotent."""
        ...

    def destroy(self) -> None:
        """Empty all tables, on disk too."""
        ...


@runtime_checkable
class JournaledStructure(Protocol):
    """A metadata store whose file Java brokers read, which can do without that. Optional."""

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Tell what comes and goes where only this program finds it, at once, and in Java's file at
        intervals: for a tier that no Java broker can open."""
        ...
