"""Byte ranges of the files of one queue, across segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, read_as_found
from tieredstore.contracts.segment import FileSegment, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.layout import CODA_SIZE
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, extent_at, list_again
from tieredstore.scan.findings import Finding, damage
from tieredstore.scan.intervals import Interval

_REMEMBERED_BYTES = 64 << 10
"""Bytes of a read, at most, that are kept for the next ones."""
_UNITS_PER_READ = 1 << 14
_SURE_UNITS = 4 * _UNITS_PER_READ
"""So many more units that can be read than others settle that the expired ones end before."""
Units = npt.NDArray[np.void]
"""Consume queue units: an array of `message.consume_queue.UNIT_DTYPE`."""


class ExtentReader:
    """Reads one file, given as its segments. Segments are opened on first use. A small read that
    lies in the one before it asks for nothing."""

    def __init__(self, provider: SegmentProvider, extents: tuple[SegmentExtent, ...]) -> None:
        self._provider = provider
        self._extents = extents
        self._open: dict[SegmentId, FileSegment] = {}
        self._last = 0, memoryview(b""), True  # the last: whether no damaged block is in it

    def extent_at(self, offset: int) -> SegmentExtent | None:
        return extent_at(self._extents, offset)

    def read(self, offset: int, length: int, *, along_bytes: int = 0) -> memoryview:
        """Read exactly `length` bytes from `offset` (of the file) on, over any number of segments.
        along_bytes: so many behind them are read with them, as far as their segment has them, for
        the reads to come.

        Bytes in damaged blocks are given as they are: for who compares them with others, or looks
        for structure. Who serves them prepares a read that tells of the damage. Raises Corrupt
        where no segment covers the range, Unavailable on a backend error.
        """
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
                # The segment became shorter: what is asked for may be left.
        return self.prepare(offset, length)()

    def _choose_piece(
        self, extent: SegmentExtent, offset: int, length: int, along_bytes: int
    ) -> tuple[int, int]:
        """What is read, and remembered, for a small read: a request for a few bytes takes as long
        as one for a small object."""
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
        """Prepare `read` for another thread: what is returned reads, or raises as `read` does.
        damaged: told what touches damaged blocks."""
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
        """Prepare a read whose bytes are served: it raises BlocksDamaged for what it finds of
        damaged blocks in the first segment that has some, and as `read` does."""
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
            segment=None if nearest is None else nearest.id,
            position=None if nearest is None else offset - nearest.base_offset,
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
    """Both files of one queue. A context manager that closes what it opened. least: its
    `min_offset`, where that is known."""

    def __init__(
        self, provider: SegmentProvider, queue: QueueFiles, least: int | None = None
    ) -> None:
        self.queue = queue
        self._least = least
        self.commit_log = ExtentReader(provider, queue.commit_log)
        self._consume_queue = ExtentReader(provider, queue.consume_queue)
        self._provider = provider
        self._has_looked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.commit_log.close()
        self._consume_queue.close()

    def read_units(
        self, offset: int, count: int, damaged: list[BlocksDamaged] | None = None
    ) -> Units:
        """Read the units of the queue offsets [offset, offset + count), which one span covers.
        damaged: told which of them are in damaged blocks. What a unit names tells whether it is
        right, but for its tags code."""
        if damaged is None:
            data = self._consume_queue.read(offset * UNIT_SIZE, count * UNIT_SIZE)
        else:
            data = self._consume_queue.prepare(offset * UNIT_SIZE, count * UNIT_SIZE, damaged)()
        return np.frombuffer(data, dtype=UNIT_DTYPE)

    def prepare_units(self, offset: int, count: int) -> Callable[[], memoryview]:
        """Prepare the read of the bytes of some units for another thread."""
        return self._consume_queue.prepare(offset * UNIT_SIZE, count * UNIT_SIZE)

    @property
    def provider(self) -> SegmentProvider:
        return self._provider

    def see_growth(self) -> bool:
        """List the queue's commit log again; whether it has grown since. Once a reader, since the
        consume queue stays as it was: what it names was there before it."""
        if self._has_looked:
            return False
        self._has_looked = True
        grown = list_again(self._provider, self.queue).commit_log
        if sum(e.size_bytes for e in grown) <= sum(e.size_bytes for e in self.queue.commit_log):
            return False
        self.commit_log.close()
        self.queue = replace(self.queue, commit_log=grown)
        self.commit_log = ExtentReader(self._provider, grown)
        return True

    def read_log_start_now(self) -> int:
        """Find where the queue's commit log begins at this moment: segments may expire
        meanwhile, also all of them."""
        now = list_again(self._provider, self.queue)
        return now.commit_log_min_offset if now.commit_log else self.queue.commit_log_max_offset

    def unit_place(self, offset: int) -> tuple[SegmentId | None, int | None]:
        """Find segment and byte position of a unit, for messages to people."""
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
        """Find the first queue offset whose message the commit log still holds, or whose unit is
        lost: what the metadata speaks of has not expired.

        Commit log and consume queue expire separately: the first units may name bytes that are
        gone. Reads O(log n) units, once a reader.
        """
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
        low, high = self._spans[0]
        if start == 0:
            return low
        while low < high:
            middle = (low + high) // 2
            if int(self.read_units(middle, 1)[0]["physical_offset"]) < start:
                low = middle + 1
            else:
                high = middle
        if low > self._spans[0][0] and not self._is_border(low, self._spans[0][1]):
            low = self._step_back(self.find_first_alive(*self._spans[0]))
        if low == self._spans[0][1] and len(self._spans) > 1:
            return self._spans[1][0]
        return low

    def _step_back(self, low: int) -> int:
        """Return the first unit alive where damage lies around the border: units right in front of
        `low` may be damaged, not expired."""
        start, (begin, end) = self.queue.commit_log_min_offset, self._spans[0]
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
        # Else behind the last one that has expired and goes on where the one before it ended.
        goes_on = np.isin(positions[1:] - (positions + sizes)[:-1], (0, CODA_SIZE))
        expired = np.flatnonzero(may_be_expired[1:] & may_be_expired[:-1] & goes_on)
        return first + int(expired[-1]) + 2 if len(expired) else first

    def _is_border(self, offset: int, end: int) -> bool:
        """Whether the unit in front of one names the bytes in front of it: then a damaged unit has
        not led the search astray."""
        start = self.queue.commit_log_min_offset
        before = self.read_units(offset - 1, 1)[0]
        if offset < end:
            start = int(self.read_units(offset, 1)[0]["physical_offset"])
        return start - (int(before["physical_offset"]) + int(before["size"])) in (0, CODA_SIZE)

    def find_first_alive(self, start: int, end: int) -> int:
        """Find where expired units end, by all units [start, end): the border that the fewest
        contradict. Raises Unavailable."""
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
        """Return the queue offset behind the last message: of which there is a unit, or of which
        the metadata says so."""
        return max((end for _, end in (*self._spans[-1:], *self._lost[-1:])), default=0)
