"""FlatSegments: the segments of one file, and reading across them.

Offsets are bytes of the whole file; a segment's base offset is the file offset of its first byte.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.tier.flat.segment import FlatSegment
from tieredstore.tier.reading import Reading, SegmentRead

_EMPTY = memoryview(b"")
_base_offset = attrgetter("base_offset")


class FlatSegments:
    """Segments by ascending base offset. Readers take no lock: they see the list and the commit
    positions of the moment."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: tuple[FlatSegment, ...] = ()

    # What there is

    @property
    def segments(self) -> tuple[FlatSegment, ...]:
        """By ascending base offset."""
        return self._segments

    @property
    def min_offset(self) -> int:
        """Offset of the first byte, 0 without segments."""
        segments = self._segments
        return segments[0].base_offset if segments else 0

    @property
    def commit_offset(self) -> int:
        """Offset behind the last committed byte, 0 without segments."""
        segments = self._segments
        if not segments:
            return 0
        last = segments[-1]
        return last.base_offset + last.commit_position  # not its property: asked for each message

    @property
    def size_bytes(self) -> int:
        """Committed bytes of all segments."""
        return sum(segment.commit_position for segment in self._segments)

    @property
    def min_timestamp_ms(self) -> int:
        """Begin time of the first segment that was written; -1 when none was."""
        for segment in self._segments:
            if segment.begin_ms != NEVER_WRITTEN_MS:
                return segment.begin_ms
        return -1

    @property
    def max_timestamp_ms(self) -> int:
        """End time of the last segment that was written; -1 when none was."""
        for segment in reversed(self._segments):
            if segment.end_ms != NEVER_WRITTEN_MS:
                return segment.end_ms
        return -1

    @property
    def holes(self) -> list[tuple[int, int]]:
        """[first missing, next present) offsets between segments that hold something."""
        segments = self._segments
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
        """Return committed bytes of one segment when they are at hand, and undamaged, else None."""
        segments = self._segments
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
        """Read the committed bytes from `offset` on, over any number of segments.

        Shorter than `length` where the file or a run of contiguous segments ends; empty when the
        offset has expired, is in a hole or is not committed. Bytes in damaged blocks are given as
        they are, for who looks for structure; `damaged` is told, for who serves them. Raises what
        segments raise.
        """
        at_hand = self.read_nowait(offset, length)
        if at_hand is not None:
            return at_hand
        segments = self._segments
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
    """The bytes of a step; each read by itself once one of them touches damaged blocks."""
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
