"""Reads of the files of one queue, across segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, read_as_found
from tieredstore.contracts.segment import FileSegment, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.layout import BLANK_SIZE, CODA_SIZE, MAGIC_BLANK, MAGIC_POSITION
from tieredstore.message.time_records import TimedRange
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import Interval, QueueFiles, SegmentExtent, extent_at
from tieredstore.scan.findings import Finding, damage
from tieredstore.scan.listing import list_again

_REMEMBERED_BYTES = 64 << 10
"""Maximum number of bytes of one read that are cached for later reads."""
_UNITS_PER_READ = 1 << 14
_SURE_UNITS = 4 * _UNITS_PER_READ
"""The search for the last expired unit ends when the units of existing messages outnumber the units
of expired messages by this number."""
Units = npt.NDArray[np.void]
"""Consume queue units: an array of `message.consume_queue.UNIT_DTYPE`."""


class ExtentReader:
    """Reader of one file through its segments, which are opened on first use. A small read within
    the previous read sends no request."""

    def __init__(self, provider: SegmentProvider, extents: tuple[SegmentExtent, ...]) -> None:
        self._provider = provider
        self._extents = extents
        self._open: dict[SegmentId, FileSegment] = {}
        self._last = 0, memoryview(b""), True  # the last: whether no damaged block is in it

    def extent_at(self, offset: int) -> SegmentExtent | None:
        return extent_at(self._extents, offset)

    def read(self, offset: int, length: int, *, along_bytes: int = 0) -> memoryview:
        """Read exactly `length` bytes from `offset` of the file, across segments. `along_bytes`:
        also read up to this number of following bytes of the same segment, for later reads. Bytes
        in damaged blocks are returned unchanged. Use `prepare_checked` for messages that are
        returned to users. Raises Corrupt if no segment covers the range, Unavailable."""
        found = self._find_remembered(offset, length)
        if found is not None:
            return found
        extent = extent_at(self._extents, offset)
        if extent is not None and length <= _REMEMBERED_BYTES:
            start, end = self._choose_piece(extent, offset, length, along_bytes)
            damaged: list[BlocksDamaged] = []
            try:
                data = self.prepare(start, end - start, damaged)()
                self._last = start, data, not damaged
                return data[offset - start : offset - start + length]
            except Corrupt:
                if end - start == length:
                    raise
                # The segment became shorter. The requested bytes may still be there.
        return self.prepare(offset, length)()

    def _choose_piece(
        self, extent: SegmentExtent, offset: int, length: int, along_bytes: int
    ) -> tuple[int, int]:
        """Return the range that a small read fetches and caches. Over a network this can be the
        whole segment, because a small object takes as long as a few bytes."""
        if (
            extent.size_bytes <= _REMEMBERED_BYTES
            and offset + length <= extent.end_offset
            and extent.listing is not None
            and extent.listing.objects == 1
            and waits_for_network(self._provider)
        ):
            return extent.base_offset, extent.end_offset
        along = min(offset + length + along_bytes, extent.end_offset, offset + _REMEMBERED_BYTES)
        return offset, max(offset + length, along)

    def prepare(
        self, offset: int, length: int, damaged: list[BlocksDamaged] | None = None
    ) -> Callable[[], memoryview]:
        """Return a function that reads the bytes in another thread. It raises the errors of `read`.
        `damaged`: receives errors about damaged blocks."""
        found = self._find_remembered(offset, length, is_checked=damaged is not None)
        if found is not None:
            return lambda: found
        places: list[tuple[FileSegment, int, int]] = []
        missing: Finding | None = None
        while length > 0:
            extent = extent_at(self._extents, offset)
            if extent is None:
                missing = self._make_missing_finding(offset, length)
                break
            count = min(length, extent.end_offset - offset)
            places.append((self._segment(extent), offset - extent.base_offset, count))
            offset += count
            length -= count

        def read() -> memoryview:
            pieces = [read_as_found(*place, damaged) for place in places]
            if missing is not None:
                raise missing.to_error()
            return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

        return read

    def prepare_checked(self, offset: int, length: int) -> Callable[[], memoryview]:
        """Return a function like that of `prepare`, which also raises BlocksDamaged for bytes in
        damaged blocks. If several segments are damaged, the error is about the first one."""
        damaged: list[BlocksDamaged] = []
        read = self.prepare(offset, length, damaged)

        def load() -> memoryview:
            data = read()
            if damaged:
                raise damaged[0]
            return data

        return load

    def _find_remembered(
        self, offset: int, length: int, *, is_checked: bool = False
    ) -> memoryview | None:
        start, data, is_sound = self._last
        if is_checked and not is_sound:
            return None
        if start <= offset and offset + length <= start + len(data):
            return data[offset - start : offset - start + length]
        return None

    def _make_missing_finding(self, offset: int, length: int) -> Finding:
        before = [extent for extent in self._extents if extent.base_offset <= offset]
        nearest = before[-1] if before else (self._extents[0] if self._extents else None)
        return damage(
            "bytes-missing",
            "no segment covers these bytes",
            None if nearest is None else nearest.id,
            None if nearest is None else offset - nearest.base_offset,
            expected=f"{length} bytes at offset {offset}",
            found="none" if nearest is None else f"a segment that ends at {nearest.end_offset}",
        )

    def _segment(self, extent: SegmentExtent) -> FileSegment:
        segment = self._open.get(extent.id)
        if segment is None:
            segment = self._provider.open(extent.id, extent.listing)
            self._open[extent.id] = segment
        return segment

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()


class QueueReader:
    """Reader of both files of one queue. A context manager that closes its segments. `least`: the
    queue's `min_offset`, if known."""

    def __init__(
        self, provider: SegmentProvider, queue: QueueFiles, least: int | None = None
    ) -> None:
        self.queue = queue
        self._least = least
        self.commit_log = ExtentReader(provider, queue.commit_log)
        self._consume_queue = ExtentReader(provider, queue.consume_queue)
        self.provider = provider
        self._has_looked = False
        self.recorded_times: list[TimedRange] | None = None
        """Recorded times of the queue's messages. None until they are loaded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.commit_log.close()
        self._consume_queue.close()

    def read_units(
        self, offset: int, count: int, damaged: list[BlocksDamaged] | None = None
    ) -> Units:
        """Read the units of queue offsets [offset, offset + count), which must be in one span.
        `damaged`: receives errors about damaged blocks. In such a block, all fields of a unit
        except its tags code can be checked against its record."""
        if damaged is None:
            data = self._consume_queue.read(offset * UNIT_SIZE, count * UNIT_SIZE)
        else:
            data = self._consume_queue.prepare(offset * UNIT_SIZE, count * UNIT_SIZE, damaged)()
        return np.frombuffer(data, dtype=UNIT_DTYPE)

    def prepare_units(self, offset: int, count: int) -> Callable[[], memoryview]:
        """Return a function that reads the bytes of `count` units in another thread."""
        return self._consume_queue.prepare(offset * UNIT_SIZE, count * UNIT_SIZE)

    def see_growth(self) -> bool:
        """List the queue's commit log again, and return whether it has grown. Later calls do not
        list, because the reader's units refer only to bytes that were written before the first
        call."""
        if self._has_looked:
            return False
        self._has_looked = True
        grown = list_again(self.provider, self.queue).commit_log
        if sum(e.size_bytes for e in grown) <= sum(e.size_bytes for e in self.queue.commit_log):
            return False
        self.commit_log.close()
        self.queue = replace(self.queue, commit_log=grown)
        self.commit_log = ExtentReader(self.provider, grown)
        return True

    def read_log_start_now(self) -> int:
        """Return the current start of the queue's commit log (bytes). It may be later than in the
        catalogue, because segments may have expired."""
        now = list_again(self.provider, self.queue)
        return now.commit_log_min_offset if now.commit_log else self.queue.commit_log_max_offset

    def unit_place(self, offset: int) -> tuple[SegmentId | None, int | None]:
        """Return the segment of a unit and its position in the segment (bytes), for a finding. Both
        are None if no segment has the unit."""
        extent = self._consume_queue.extent_at(offset * UNIT_SIZE)
        if extent is None:
            return None, None
        return extent.id, offset * UNIT_SIZE - extent.base_offset

    @cached_property
    def _spans(self) -> list[Interval]:
        return self.queue.unit_spans()

    @cached_property
    def _lost(self) -> list[Interval]:
        return self.queue.lost_units()

    def min_offset(self) -> int:
        """Return the first queue offset whose message is in the commit log, or whose unit is lost.
        Earlier units may exist, but their messages have expired. The search reads O(log n) units,
        once per reader."""
        if self._least is None:
            self._least = self._find_min_offset()
        return self._least

    def _find_min_offset(self) -> int:
        start = self.queue.commit_log_min_offset
        if self._lost and (not self._spans or self._lost[0] < self._spans[0]):
            first = self._lost[0][0]
            if not self._spans or start == 0:
                return first
            if int(self.read_units(self._spans[0][0], 1)[0]["physical_offset"]) > start:
                return first  # the commit log has what they named, or the last of it
        if not self._spans:
            return 0
        if start == 0:
            return self._spans[0][0]
        # Behind a hole, the units may have expired as well.
        for span in self._spans:
            low = self._find_alive_in(span)
            if low < span[1]:
                break
        return low

    def _find_alive_in(self, span: Interval) -> int:
        """Return the first unit of a span whose message has not expired, or the span's end."""
        start, (low, high) = self.queue.commit_log_min_offset, span
        while low < high:
            middle = (low + high) // 2
            if int(self.read_units(middle, 1)[0]["physical_offset"]) < start:
                low = middle + 1
            else:
                high = middle
        if low > span[0] and not self._is_border(low, span[1]):
            low = self._step_back(self._find_first_alive(*span), span)
        return low

    def _step_back(self, low: int, span: Interval) -> int:
        """Correct the result `low` of the search for the first existing message. Return an earlier
        unit if units just before `low` look expired only because they are damaged."""
        start, (begin, end) = self.queue.commit_log_min_offset, span
        if low == begin or (
            low < end and int(self.read_units(low, 1)[0]["physical_offset"]) == start
        ):
            return low
        first = max(begin, low - _UNITS_PER_READ)
        units = self.read_units(first, low - first)
        positions, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        may_be_expired = (positions < start) & (sizes > 0)
        # Where the log begins, the last expired message ends.
        is_last = np.isin(start - (positions + sizes), (0, CODA_SIZE))
        borders = np.flatnonzero(may_be_expired & is_last)
        if len(borders):
            return first + int(borders[-1]) + 1
        # Else behind the last expired unit that continues where the one before it ended.
        goes_on = np.isin(positions[1:] - (positions + sizes)[:-1], (0, CODA_SIZE))
        expired = np.flatnonzero(may_be_expired[1:] & may_be_expired[:-1] & goes_on)
        return first + int(expired[-1]) + 2 if len(expired) else first

    def _is_border(self, offset: int, end: int) -> bool:
        """Return whether the units before and after `offset` refer to adjacent bytes. No damaged
        unit has then misled the search for the first unexpired unit."""
        start = self.queue.commit_log_min_offset
        before = self.read_units(offset - 1, 1)[0]
        behind = offset if offset < end else next((low for low, _ in self._spans if low > end), end)
        if behind > end or offset < end:
            start = int(self.read_units(behind, 1)[0]["physical_offset"])
        return start - (int(before["physical_offset"]) + int(before["size"])) in (0, CODA_SIZE)

    def find_first_alive(self) -> int:
        """Return the queue offset at which the expired units end. Unlike `min_offset`, this reads
        all units. If damaged units contradict each other, the majority decides. Return 0 for a
        queue without units. Raises Unavailable."""
        low = 0
        for span in self._spans:
            low = self._find_first_alive(*span)
            if low < span[1]:
                break
        return low

    def _find_first_alive(self, start: int, end: int) -> int:
        """Run `find_first_alive` for one span."""
        log_start = self.queue.commit_log_min_offset
        if log_start == 0:
            return start
        best, lowest, height = start, 0, 0
        for low in range(start, end, _UNITS_PER_READ):
            try:
                units = self.read_units(low, min(_UNITS_PER_READ, end - low))
            except Corrupt:
                continue  # reported where messages are read
            alive = units["physical_offset"].astype(np.int64) >= log_start
            heights = height + np.cumsum(np.where(alive, 1, -1))
            at = int(heights.argmin())
            if int(heights[at]) < lowest:
                best, lowest = low + at + 1, int(heights[at])
            height = int(heights[-1])
            if height - lowest > _SURE_UNITS:
                break
        return best

    def max_offset(self) -> int:
        """Return the queue offset after the last message, according to the units or the
        metadata."""
        return max((end for _, end in (*self._spans[-1:], *self._lost[-1:])), default=0)


# A coda is the 16 bytes that old writers put at the end of a segment. The unit of the next message
# may name it (`docs/formats/record.md`).


def is_coda(reader: QueueReader, low: int, high: int) -> bool:
    """Return whether the commit log bytes [low, high) are the coda that old writers put at the end
    of a segment. Raises Unavailable."""
    extent = reader.commit_log.extent_at(low)
    if high - low != CODA_SIZE or extent is None or high != extent.end_offset:
        return False
    try:
        head = reader.commit_log.read(low, CODA_SIZE)
    except Corrupt:  # the segment became shorter
        return False
    return _begins_coda(head)


def skip_last_codas(queue: QueueFiles, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions at which messages start. `offsets`: the positions in their units. If a
    unit refers to the coda of an old segment, its message starts in the next segment."""
    offsets = offsets.copy()
    for extent in queue.commit_log:
        for border in (extent.base_offset, extent.end_offset):  # the segment in front may be lost
            offsets[offsets == border - CODA_SIZE] += CODA_SIZE
    return offsets


def find_message(reader: QueueReader, offset: int, size: int = 0) -> int:
    """Return the start of the message whose unit refers to the commit log offset `offset`. It
    starts there, or after the coda of an old writer. `size`: size of the message in bytes, to cache
    it for the next read. Raises Unavailable."""
    place = int(skip_last_codas(reader.queue, np.array([offset]))[0])
    try:
        head = reader.commit_log.read(place, BLANK_SIZE, along_bytes=max(size - BLANK_SIZE, 0))
    except Corrupt:
        return place
    return place + CODA_SIZE * _begins_coda(head)


def _begins_coda(head: memoryview) -> bool:
    return int.from_bytes(head[MAGIC_POSITION : MAGIC_POSITION + 4], "big") == MAGIC_BLANK
