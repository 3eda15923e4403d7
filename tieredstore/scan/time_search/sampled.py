"""Estimate of the bounds of a time range in a large queue, from the times of some messages. Samples
are closer together near the bounds. The start is accepted if all samples before it, and all
possible times between them, are earlier than the range. The end is treated the same way. A queue
whose times are not in ascending order therefore needs more samples. The reader later checks the
time of each message between the bounds."""

from __future__ import annotations

import bisect
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.scan.catalogue import clip_spans
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.time_search.store_times import read_times_at

STEP_MS = 60_000
"""Largest clock change that cannot make the search miss messages. The search looks for a time range
that is longer by this time at both ends."""
_BLOCK_BYTES = 1 << 20
"""Approximate commit log bytes between two samples. A smaller gap is not divided further."""
_FIRST_SAMPLES = 64
_PARTS = 8
"""Number of parts into which new samples divide the gap between two samples."""
_TRIES = 4
"""Maximum number of consecutive messages that are read for one sample, until one is readable."""


def narrow_by_samples(
    reader: QueueReader, low: int, high: int, since_ms: int | None, until_ms: int | None
) -> tuple[int, int]:
    """Return queue offsets within [low, high). Messages outside are unlikely to be stored within
    [since, until), epoch ms. At most a few hundred heads are read. Times that leave the range for
    more than a minute and return between two samples are missed, unless the metadata of segments
    shows them. Raises Unavailable."""
    search = SampledSearch(reader, low, high)
    begin = 0 if since_ms is None else search.find_begin(since_ms)
    end = search.count if until_ms is None else search.find_end(until_ms)
    if begin > end:
        return low, low
    # Messages between two spans of units count as being as old as those around them.
    first = search.offset_at(begin - 1) + 1 if begin else low
    return first, search.offset_at(end) if end < search.count else high


def _median_around(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return for each value the median of it and three values on each side, to ignore outliers."""
    if not len(values):
        return values
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, 3, "reflect"), 7)
    found: npt.NDArray[np.float64] = np.median(around, axis=1)
    return found


class SampledSearch:
    """Search in samples: known store times of some messages of a queue, by position. A position is
    the index of a message among all searched messages, over all spans."""

    def __init__(self, reader: QueueReader, low: int, high: int) -> None:
        self._reader = reader
        self._spans = clip_spans(reader.queue.unit_spans(), low, high)
        self._ends = list(accumulate(end - start for start, end in self._spans))
        self.count = self._ends[-1] if self._ends else 0
        self._places = self._times = np.empty(0, np.int64)
        log_bytes = sum(extent.size_bytes for extent in reader.queue.commit_log)
        held = sum(end - start for start, end in reader.queue.unit_spans())
        each = log_bytes / max(held, 1)
        self._block = max(1, int(_BLOCK_BYTES / max(each, 1)))
        if self.count:
            step = -(-self.count // _FIRST_SAMPLES)
            self._take_samples([*range(0, self.count - 1, step), self.count - 1])

    def find_begin(self, since_ms: int) -> int:
        """Return the first position whose message may be stored at or after `since_ms`."""
        while True:
            late = np.flatnonzero(self._guess_bounds()[1] >= since_ms - STEP_MS)
            gap = int(late[0]) if len(late) else len(self._places)
            if not self._split(gap):
                break
        begin = int(self._places[gap - 1]) if gap else 0
        return self._widen_begin(begin, since_ms)

    def find_end(self, until_ms: int) -> int:
        """Return a position after which the samples show no message stored before `until_ms`."""
        while True:
            early = np.flatnonzero(self._guess_bounds()[0] < until_ms + STEP_MS)
            gap = int(early[-1]) if len(early) else 0
            if not self._split(gap):
                break
        end = int(self._places[gap]) + 1 if gap < len(self._places) else self.count
        return self._widen_end(end, until_ms)

    def _guess_bounds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the smallest and largest possible time in each gap between samples. Gap 0 is
        before the first sample, and the last gap is after the last one. If a clock was set back
        within a gap, the sampled times differ by less than the time that passed. This time is
        estimated from the neighbouring gaps."""
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
        """Return the queue offset of a position."""
        span = bisect.bisect_right(self._ends, place)
        end = self._spans[span][1]
        return end - (self._ends[span] - place)

    def _split(self, gap: int) -> bool:
        """Take samples within a gap. Return whether a sample was found."""
        low = int(self._places[gap - 1]) if gap else -1
        high = int(self._places[gap]) if gap < len(self._places) else self.count
        if high - low <= self._block:
            return False
        step = max(self._block // 2, -(-(high - low) // _PARTS), 1)
        return self._take_samples(list(range(low + step, high, step)))

    def _take_samples(self, places: list[int]) -> bool:
        """Read the store times of the messages at some positions, or of one just after an
        unreadable message. Return whether a sample was added."""
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
        """Return the position `begin`. If the metadata shows a time at or after `since_ms` in an
        earlier segment, return the start of that segment."""
        for extent in self._reader.queue.commit_log:
            if extent.times is not None and extent.times[1] >= since_ms:
                return self._place_behind(extent.base_offset, 0, begin)
        return begin

    def _widen_end(self, end: int, until_ms: int) -> int:
        """Return the position `end`. If the metadata shows a time before `until_ms` in a later
        segment, return the end of that segment."""
        for extent in reversed(self._reader.queue.commit_log):
            if extent.times is not None and extent.times[0] < until_ms:
                return self._place_behind(extent.end_offset, end, self.count)
        return end

    def _place_behind(self, log_offset: int, low: int, high: int) -> int:
        """Return the first position of [low, high) whose unit refers to bytes after `log_offset`,
        or `high`."""

        def named(place: int) -> int:
            unit = self._reader.read_units(self.offset_at(place), 1)[0]
            return int(unit["physical_offset"])

        try:
            if low >= high or named(high - 1) < log_offset:  # mostly
                return high
            return bisect.bisect_left(range(high), log_offset, lo=low, key=named)
        except Corrupt:  # shorter than it was listed
            return low
