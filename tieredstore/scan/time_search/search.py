"""Finds where the messages of a time begin and end in a queue, without presuming that the store
times of a queue rise: clocks are set back, and brokers fail over.

Of a queue of a few MiB every time is read. Of a larger one, times are sampled all over the queue
and ever more closely around the border. A bound is believed only where all samples in front of it
(or behind it), and what may lie between them, are on the right side of the time: so a queue whose
times do not rise is read as far as that takes. What the bounds enclose is compared message by
message where it is read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.time_search.store_times import read_times, read_times_at

READ_WHOLE_BYTES = 8 << 20
"""Commit log bytes up to which the times of all messages are read: over a network that takes no
longer than a search."""
STEP_MS = 60_000
"""A clock that is set by less than this is never noticed: bounds are wider by as much."""
_BLOCK_BYTES = 1 << 20
"""Commit log bytes, about, below which no more samples are taken."""
_FIRST_SAMPLES = 64
_PARTS = 8
"""Parts into which samples cut what lies beside a border."""
_TRIES = 4
"""Messages that are tried for one sample, where the first are damaged."""
_AT_ONCE = 1 << 14
"""Messages whose times are read in one step."""


def narrow_by_time(
    reader: QueueReader,
    low: int,
    high: int,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> tuple[int, int]:
    """Return queue offsets within [low, high) outside of which no message of it is stored within
    [since, until), epoch ms. Others may lie between.

    Messages that cannot be read are taken to be as old as those around them. Of a queue above
    8 MiB, a few hundred heads are read at most: times that go out of [since, until) and come back
    between two samples, by more than a minute, are seen only in the times of its segments, where
    the catalogue has metadata. Raises Unavailable.
    """
    search = _TimeSearch(reader, low, high)
    begin = 0 if since_ms is None else search.find_begin(since_ms)
    end = search.count if until_ms is None else search.find_end(until_ms)
    if begin > end:
        return low, low
    # What lies between two spans of units is as old as what is around it.
    first = search.offset_at(begin - 1) + 1 if begin else low
    return first, search.offset_at(end) if end < search.count else high


def is_read_whole(queue: QueueFiles) -> bool:
    """Tell whether the search reads the times of all messages of a queue."""
    return sum(extent.size_bytes for extent in queue.commit_log) <= READ_WHOLE_BYTES


def find_first(
    reader: QueueReader,
    low: int,
    high: int,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    search_times: bool = True,
) -> int | None:
    """Return the first queue offset of [low, high) whose message is stored within [since, until),
    None where there is none. Messages that cannot be read are passed over. Without `search_times`
    the time of each message in front of it is read. Raises Unavailable."""
    first, until = low, high
    if search_times:
        first, until = narrow_by_time(reader, low, high, since_ms=since_ms, until_ms=until_ms)
    for start, end in _clip(reader.queue.unit_spans(), first, until):
        for at in range(start, end, _AT_ONCE):
            times, wanted = read_times(reader, at, min(_AT_ONCE, end - at))
            if since_ms is not None:
                wanted &= times >= since_ms
            if until_ms is not None:
                wanted &= times < until_ms
            if wanted.any():
                return at + int(np.argmax(wanted))
    return None


def _clip(spans: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    clipped = ((max(start, low), min(end, high)) for start, end in spans)
    return [(start, end) for start, end in clipped if start < end]


def _median_around(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of each value and the three on each side of it: one that is far out does not count."""
    if not len(values):
        return values
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, 3, "reflect"), 7)
    found: npt.NDArray[np.float64] = np.median(around, axis=1)
    return found


class _TimeSearch:
    """Known times of messages of a queue, by their places: their numbers among the messages that
    are searched, counted from 0 over all spans."""

    def __init__(self, reader: QueueReader, low: int, high: int) -> None:
        self._reader = reader
        self._spans = _clip(reader.queue.unit_spans(), low, high)
        self._ends = list(accumulate(end - start for start, end in self._spans))
        self.count = self._ends[-1] if self._ends else 0
        self._places = self._times = np.empty(0, np.int64)
        log_bytes = sum(extent.size_bytes for extent in reader.queue.commit_log)
        held = sum(end - start for start, end in reader.queue.unit_spans())
        each = log_bytes / max(held, 1)
        self._block = max(1, int(_BLOCK_BYTES / max(each, 1)))
        self._is_whole = self.count * each <= READ_WHOLE_BYTES
        if self._is_whole:
            self._read_all()
        else:
            step = -(-self.count // _FIRST_SAMPLES)
            self._take_samples([*range(0, self.count - 1, step), self.count - 1])

    def find_begin(self, since_ms: int) -> int:
        """Find the place from which on messages may be stored at or after a time."""
        if self._is_whole:
            late = np.flatnonzero(self._times >= since_ms)
            earlier = int(late[0]) if len(late) else len(self._times)
            return int(self._places[earlier - 1]) + 1 if earlier else 0
        while True:
            late = np.flatnonzero(self._guess_bounds()[1] >= since_ms - STEP_MS)
            gap = int(late[0]) if len(late) else len(self._places)
            if not self._split(gap):
                break
        begin = int(self._places[gap - 1]) if gap else 0
        return self._widen_begin(begin, since_ms)

    def find_end(self, until_ms: int) -> int:
        """Find the place from which on no message is stored before a time."""
        if self._is_whole:
            early = np.flatnonzero(self._times < until_ms)
            later = int(early[-1]) + 1 if len(early) else 0
            return int(self._places[later]) if later < len(self._places) else self.count
        while True:
            early = np.flatnonzero(self._guess_bounds()[0] < until_ms + STEP_MS)
            gap = int(early[-1]) if len(early) else 0
            if not self._split(gap):
                break
        end = int(self._places[gap]) + 1 if gap < len(self._places) else self.count
        return self._widen_end(end, until_ms)

    def _guess_bounds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Smallest and largest time that each gap between samples may hold: number 0 lies in front
        of the first one, the last one behind the last.

        A clock that was set back within a gap shows in the samples only by less time between them
        than there was. How much there was is guessed from the gaps around it.
        """
        if not len(self._times):
            return np.array([-np.inf]), np.array([np.inf])
        times = self._times.astype(np.float64)
        before, after = times[:-1], times[1:]
        counts = np.diff(self._places).astype(np.float64)
        passed = 2 * _median_around(np.maximum(after - before, 0) / counts) * counts
        low = np.minimum(np.minimum(before, after), after - passed)
        high = np.maximum(np.maximum(before, after), before + passed)
        return (
            np.concatenate([times[:1], low, times[-1:]]),
            np.concatenate([times[:1], high, [np.inf]]),
        )

    def offset_at(self, place: int) -> int:
        """Return the queue offset of a place."""
        span = bisect.bisect_right(self._ends, place)
        end = self._spans[span][1]
        return end - (self._ends[span] - place)

    def _place_of(self, offset: int) -> int:
        """The place of the first message at or behind a queue offset."""
        place = 0
        for start, end in self._spans:
            if offset < end:
                return place + max(offset - start, 0)
            place += end - start
        return place

    def _read_all(self) -> None:
        place = 0
        for start, end in self._spans:
            for first in range(start, end, _AT_ONCE):
                count = min(_AT_ONCE, end - first)
                found = read_times(self._reader, first, count)
                self._add(place + np.flatnonzero(found.known), found.times[found.known])
                place += count

    def _split(self, gap: int) -> bool:
        """Take samples within a gap between samples; whether that gave any."""
        low = int(self._places[gap - 1]) if gap else -1
        high = int(self._places[gap]) if gap < len(self._places) else self.count
        if high - low <= self._block:
            return False
        step = max(self._block // 2, -(-(high - low) // _PARTS), 1)
        return self._take_samples(list(range(low + step, high, step)))

    def _take_samples(self, places: list[int]) -> bool:
        """Read the times at some places, or right behind those that cannot be read."""
        before = len(self._places)
        for tried in range(_TRIES):
            wanted = [place + tried for place in places if place + tried < self.count]
            found = read_times_at(self._reader, [self.offset_at(place) for place in wanted])
            self._add(np.array(wanted, np.int64)[found.known], found.times[found.known])
            known = dict(zip(wanted, found.known.tolist(), strict=True))
            places = [place for place in places if not known.get(place + tried, True)]
            if not places:
                break
        return len(self._places) > before

    def _add(self, places: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> None:
        joined, first = np.unique(np.concatenate([self._places, places]), return_index=True)
        self._times = np.concatenate([self._times, times])[first]
        self._places = joined

    def _widen_begin(self, begin: int, since_ms: int) -> int:
        """`begin`, or the start of an earlier segment whose metadata have a time late enough."""
        for extent in self._reader.queue.commit_log:
            if extent.times is not None and extent.times[1] >= since_ms:
                return self._place_behind(extent.base_offset, 0, begin)
        return begin

    def _widen_end(self, end: int, until_ms: int) -> int:
        """`end`, or that of a later segment whose metadata have a time early enough."""
        for extent in reversed(self._reader.queue.commit_log):
            if extent.times is not None and extent.times[0] < until_ms:
                return self._place_behind(extent.end_offset, end, self.count)
        return end

    def _place_behind(self, log_offset: int, low: int, high: int) -> int:
        """The first of the places [low, high) whose unit names a byte at or behind `log_offset`,
        `high` where there is none."""

        def named(place: int) -> int:
            unit = self._reader.read_units(self.offset_at(place), 1)[0]
            return int(unit["physical_offset"])

        try:
            if low >= high or named(high - 1) < log_offset:  # mostly
                return high
            return bisect.bisect_left(range(high), log_offset, lo=low, key=named)
        except Corrupt:  # shorter than it was listed
            return low
