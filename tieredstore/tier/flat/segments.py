"""The segments of one file, and reads across segments. Offsets are bytes of the whole file. A
segment's base offset is the file offset of its first byte."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Corrupt
from tieredstore.tier.reading import Reading, SegmentRead

_log = logging.getLogger(__name__)


class FlatSegment:
    """One segment of a flat file: its handle and its committed part.

    `commit_position`: end of the committed part in the segment (bytes).
    `begin_ms`, `end_ms`: store times of the committed messages, or NEVER_WRITTEN_MS without
    messages.
    `real_size_bytes`: size in the backend when the segment was opened.
    `recorded_size_bytes`, `recorded_begin_ms`: size and begin time in the metadata at that time.
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
        """Whether the metadata was up to date when the segment was opened. The end time is not
        compared, because it never changes alone."""
        return (
            self.commit_position == self.recorded_size_bytes
            and self.begin_ms == self.recorded_begin_ms
        )

    @property
    def end_offset(self) -> int:
        """File offset after the last committed byte."""
        return self.base_offset + self.commit_position

    def extend_times(self, begin_ms: int, end_ms: int) -> None:
        """Extend the segment's times to include newly committed messages."""
        if begin_ms == NEVER_WRITTEN_MS:
            return
        never = self.begin_ms == NEVER_WRITTEN_MS
        self.begin_ms = begin_ms if never else min(self.begin_ms, begin_ms)
        self.end_ms = end_ms if never else max(self.end_ms, end_ms)

    def metadata(self, now_ms: int, status: int = 0) -> FileSegmentMetadata:
        """Return the segment's metadata entry. An empty segment gets the current time as its end
        time, because Java's expiry deletes segments without one. The times of later messages are
        first written only to the journal, which Java does not read."""
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
        """Return whether the segment has no messages, or only messages older than `before_ms`."""
        return self.end_ms == NEVER_WRITTEN_MS or self.end_ms < before_ms


_EMPTY = memoryview(b"")
_base_offset = attrgetter("base_offset")


class FlatSegments:
    """Segments in ascending order of base offset. Readers take no lock, and see the current list
    and commit positions."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: tuple[FlatSegment, ...] = ()
        """Segments by ascending base offset."""

    # What there is

    @property
    def min_offset(self) -> int:
        """Offset of the first byte, 0 without segments."""
        segments = self.segments
        return segments[0].base_offset if segments else 0

    @property
    def commit_offset(self) -> int:
        """Offset after the last committed byte, 0 without segments."""
        segments = self.segments
        if not segments:
            return 0
        last = segments[-1]
        return last.base_offset + last.commit_position  # not its property: called per message

    @property
    def size_bytes(self) -> int:
        """Total number of committed bytes of all segments."""
        return sum(segment.commit_position for segment in self.segments)

    @property
    def min_timestamp_ms(self) -> int:
        """Begin time of the first segment with messages. -1 without messages."""
        for segment in self.segments:
            if segment.begin_ms != NEVER_WRITTEN_MS:
                return segment.begin_ms
        return -1

    @property
    def max_timestamp_ms(self) -> int:
        """End time of the last segment with messages. -1 without messages."""
        for segment in reversed(self.segments):
            if segment.end_ms != NEVER_WRITTEN_MS:
                return segment.end_ms
        return -1

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges [first missing, next existing) of offsets between segments with content."""
        segments = self.segments
        holes: list[tuple[int, int]] = []
        if segments:
            end = segments[0].end_offset
            for segment in segments[1:]:
                if segment.commit_position or segment is segments[-1]:
                    if end < segment.base_offset:
                        holes.append((end, segment.base_offset))
                    end = segment.end_offset
        return holes

    # Reading

    def read_nowait(self, offset: int, length: int) -> memoryview | None:
        """Return committed, undamaged bytes of one segment, or None if this needs a blocking
        call."""
        segments = self.segments
        index = bisect_right(segments, offset, key=_base_offset) - 1
        if length > 0 and index >= 0:
            segment = segments[index]
            position = offset - segment.base_offset
            if position + length <= segment.commit_position:
                return segment.file.read_nowait(position, length)
        return None

    def read(
        self, offset: int, length: int, damaged: list[BlocksDamaged] | None = None
    ) -> Reading[memoryview]:
        """Read committed bytes starting at `offset`, across any number of segments. The result is
        shorter than `length` at the end of the file or of a run of contiguous segments. It is empty
        if the offset has expired, is in a hole or is not committed.

        `damaged`: list to which the ranges of bytes in damaged blocks are added, for callers that
        serve messages. These bytes are returned unchanged, for callers that search for structure.

        Raises the errors of the segments.
        """
        at_hand = self.read_nowait(offset, length)
        if at_hand is not None:
            return at_hand
        segments = self.segments
        index = bisect_right(segments, offset, key=_base_offset) - 1
        step: list[SegmentRead] = []
        while length > 0 and 0 <= index < len(segments):
            segment = segments[index]
            position = offset - segment.base_offset
            part = min(length, segment.commit_position - position)
            if part <= 0:
                break
            step.append(SegmentRead(segment.file, position, part))
            offset, length, index = offset + part, length - part, index + 1
            if index < len(segments) and segments[index].base_offset != offset:
                break
        if not step:
            return _EMPTY
        found = yield from _read_as_found(step, damaged)
        return found[0] if len(found) == 1 else memoryview(b"".join(found))


def _read_as_found(
    step: list[SegmentRead], damaged: list[BlocksDamaged] | None
) -> Reading[list[memoryview]]:
    """Read several ranges and return the bytes of each. If a range touches damaged blocks, the
    ranges are read one by one, so that the others are not affected."""
    try:
        found = yield step
    except BlocksDamaged as error:
        if len(step) > 1:
            pieces = []
            for read in step:
                pieces += yield from _read_as_found([read], damaged)
            return pieces
        if damaged is not None:
            damaged.append(error)
        return [error.found]
    return found


def open_segments(
    path: str,
    type: FileSegmentType,
    provider: SegmentProvider,
    metadata: MetadataStore,
    listings: Mapping[SegmentId, SegmentListing] | None,
    unit_bytes: int,
) -> tuple[FlatSegment, ...]:
    """Open the segments of a path in order of base offset. See `FlatAppendFile.recover`."""
    entries = [entry for entry in metadata.segments(path, type) if entry.status != STATUS_DELETED]
    segments = []
    for index, entry in enumerate(entries):
        if entry.base_offset < 0 or entry.base_offset % unit_bytes:
            raise Corrupt(
                f"{entry.id}: base offset is not a multiple of {unit_bytes}",
                path=path,
                offset=entry.base_offset,
            )
        segment_id = entry.id
        listing = listings.get(segment_id) if listings is not None else None
        file = provider.open(segment_id, listing)
        room = None
        if index + 1 < len(entries):
            room = entries[index + 1].base_offset - entry.base_offset
        if listings is None:
            real = entry.size if entry.size == room else file.size()
        else:
            real = listing.size_bytes if listing is not None else 0
        size = _valid_size(entry, file, real, room)
        # Without a begin time, the end time of a segment is only the time of its registration.
        is_new = entry.begin_timestamp_ms == NEVER_WRITTEN_MS
        end_ms = NEVER_WRITTEN_MS if is_new else entry.end_timestamp_ms
        segments.append(
            FlatSegment(
                file,
                size - size % unit_bytes,
                entry.begin_timestamp_ms,
                end_ms,
                real,
                entry.size,
            )
        )
    return tuple(segments)


def _valid_size(entry: FileSegmentMetadata, file: FileSegment, real: int, room: int | None) -> int:
    """Return the number of valid bytes of a segment. `room`: number of bytes up to the base offset
    of the next segment, or None for the last segment."""
    if room is None:
        return real
    if real >= room:
        return room
    # Before a hole, bytes beyond the recorded size were never valid.
    size = min(real, entry.size or real)
    if size < entry.size:
        _log.error("%s: %d of %d bytes are gone", file.id, entry.size - size, entry.size)
    return size
