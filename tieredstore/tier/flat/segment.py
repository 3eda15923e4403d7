"""FlatSegment: one segment of a flat file, and what of it is committed."""

from __future__ import annotations

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegment

STATUS_DELETED = 2
"""Status of a segment that is being deleted: entry first, then the object, then the entry goes."""


class FlatSegment:
    """One segment of a flat file: its handle, and what of it is committed.

    commit_position: bytes; begin_ms and end_ms: store times of what is committed,
    NEVER_WRITTEN_MS while nothing is; real_size_bytes: what the backend said when it was opened;
    recorded_size_bytes, recorded_begin_ms: what the metadata said then.
    """

    __slots__ = (
        "base_offset",
        "begin_ms",
        "commit_position",
        "end_ms",
        "file",
        "real_size_bytes",
        "recorded_begin_ms",
        "recorded_size_bytes",
    )

    def __init__(
        self,
        file: FileSegment,
        commit_position: int = 0,
        begin_ms: int = NEVER_WRITTEN_MS,
        end_ms: int = NEVER_WRITTEN_MS,
        real_size_bytes: int = 0,
        recorded_size_bytes: int = 0,
    ) -> None:
        self.file = file
        self.base_offset = file.id.base_offset
        self.commit_position = commit_position
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        self.real_size_bytes = real_size_bytes
        self.recorded_size_bytes = recorded_size_bytes
        self.recorded_begin_ms = begin_ms

    @property
    def is_recorded(self) -> bool:
        """Whether the metadata had it, at opening, as it is now. The end time alone never differs:
        it moves with the size, or with the begin."""
        return (
            self.commit_position == self.recorded_size_bytes
            and self.begin_ms == self.recorded_begin_ms
        )

    @property
    def end_offset(self) -> int:
        """File offset behind the last committed byte."""
        return self.base_offset + self.commit_position

    def extend_times(self, begin_ms: int, end_ms: int) -> None:
        """Take in the times of newly committed messages."""
        if begin_ms == NEVER_WRITTEN_MS:
            return
        never = self.begin_ms == NEVER_WRITTEN_MS
        self.begin_ms = begin_ms if never else min(self.begin_ms, begin_ms)
        self.end_ms = end_ms if never else max(self.end_ms, end_ms)

    def metadata(self, now_ms: int, status: int = 0) -> FileSegmentMetadata:
        """Make the segment's metadata entry. An empty segment gets the present as its end: Java's
        expiry deletes what has none, and times of later messages are in the journal first, which
        Java does not read."""
        is_new = self.begin_ms == NEVER_WRITTEN_MS and status != STATUS_DELETED
        return FileSegmentMetadata(
            path=self.file.id.path,
            type=self.file.id.type,
            base_offset=self.base_offset,
            status=status,
            size=self.commit_position,
            create_timestamp_ms=now_ms,
            begin_timestamp_ms=self.begin_ms,
            end_timestamp_ms=now_ms if is_new else self.end_ms,
        )

    def is_expired(self, before_ms: int) -> bool:
        """Tell whether all its messages are older; a never-written one counts as expired."""
        return self.end_ms == NEVER_WRITTEN_MS or self.end_ms < before_ms
