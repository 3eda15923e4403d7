"""MetadataStore: the topics, queues and segments of a tier (`docs/formats/metadata.md`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tieredstore.contracts.segment import FileSegmentType, SegmentId

NEVER_WRITTEN_MS = 2**63 - 1
"""Begin and end timestamp of an empty segment (Java's Long.MAX_VALUE)."""
STATUS_DELETED = 2
"""Status of a segment that is being deleted. A deletion first sets this status, then deletes the
object, and finally the entry."""


@dataclass(slots=True)
class TopicMetadata:
    """Entry of a topic. `reserve_time_hours`: retention of the topic, or -1 for the store's
    default."""

    topic_id: int
    topic: str
    status: int = 0
    reserve_time_hours: int = -1
    update_timestamp_ms: int = 0

    def copy(self) -> TopicMetadata:
        """Return a copy of the entry."""
        return TopicMetadata(
            self.topic_id,
            self.topic,
            self.status,
            self.reserve_time_hours,
            self.update_timestamp_ms,
        )


@dataclass(slots=True)
class QueueMetadata:
    """Entry of a queue. `min_offset` and `max_offset` are always -1 in files that brokers write."""

    topic: str
    queue_id: int
    broker_name: str
    min_offset: int = -1
    max_offset: int = -1
    update_timestamp_ms: int = 0

    def copy(self) -> QueueMetadata:
        """Return a copy of the entry."""
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
    """Entry of a segment. `size`: committed bytes. Times are epoch ms. The begin and end times of
    an empty segment are NEVER_WRITTEN_MS."""

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
        """Return a copy of the entry. `dataclasses.replace` would take five times as long, and
        opening a tier copies each entry several times."""
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
    """Metadata of a tier. Thread-safe. Returned objects are copies. Created, rolled and deleted
    entries and topic ids are durable when the call (or the outermost `batch()`) returns. Sizes and
    times may be written later, by `flush`."""

    def load(self) -> None:
        """Read the stored metadata without changing it. Raises Corrupt. A later write renames a
        damaged file instead of deleting it."""

    def batch(self) -> AbstractContextManager[None]:
        """Combine the changes made in the block into one write at its end."""

    def topics(self) -> list[TopicMetadata]: ...
    def topic(self, topic: str) -> TopicMetadata | None: ...
    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        """Add a topic with the next topic id, and return its entry. If the topic exists, return its
        entry unchanged."""

    def update_topic(self, topic: TopicMetadata) -> None:
        """Replace the entry of a topic, including its topic id. No-op for an unknown topic."""

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        """Set the retention of a topic immediately. Returns False if there is no topic with this
        name and id, for example because it was deleted and recreated."""

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its queue table. The caller must delete the segment entries."""

    def queues(self, topic: str) -> list[QueueMetadata]: ...
    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None: ...
    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        """Add a queue and return its entry. If the queue exists, return its entry unchanged."""

    def update_queue(self, queue: QueueMetadata) -> None: ...
    def delete_queue(self, topic: str, queue_id: int) -> None: ...

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        """Yield segment entries, optionally of one path, one type, or both. The entries of a path
        are in ascending order of base offset."""

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None: ...
    def put_segment(self, segment: FileSegmentMetadata) -> None:
        """Insert an entry, or update the size, status and times of an existing one. The creation
        time never changes."""

    def delete_segment(self, id: SegmentId) -> None: ...

    def flush(self) -> None:
        """Write all pending changes to the main file."""

    def close(self) -> None:
        """Close the files without writing, because the caller may have lost the writer epoch.
        Idempotent."""

    def destroy(self) -> None:
        """Delete all metadata, also on disk."""


@runtime_checkable
class JournaledStructure(Protocol):
    """Metadata store that can defer writes to the file that Java brokers read. Optional."""

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Set whether each creation and deletion goes into a journal that only tieredstore reads.
        The file for Java is then updated at intervals. Use a journal only if no Java broker can
        open the tier."""
