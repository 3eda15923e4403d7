"""Workload of a broker: arrivals in queues, and reads of consumer groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey

Longs: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
LeavesAt: TypeAlias = Callable[[float], float]
"""Function that takes the store time of a message, and returns the time from which the tier answers
reads of this message. Both times are epoch ms."""

HOUR_MS: Final = 3_600_000
MAX_WINDOW_MS: Final = 7 * 24 * HOUR_MS
"""Maximum length of the observed time that the advice uses, ms: its last week."""
PULL_MESSAGES: Final = 32
"""Default number of messages that a RocketMQ client requests at a time."""
PARTS: Final = 64
"""Minimum number of parts into which the messages of a reading are divided. Each part counts as
read either from the tier (cold) or from the local store. A reading with a recorded progress has one
part per point, up to MAX_PARTS."""
MAX_PARTS: Final = 512
EXACT_QUEUES: Final = 32
"""Maximum number of queues to model one by one."""
_COMPARED_PARTS: Final = 48
_STEADY_SPREAD: Final = 0.5
"""Maximum standard deviation of a steady rate, as a multiple of its mean."""
_ROUNDING: Final = 1e-6
"""Tolerance for rounding errors of an interpolated queue offset, in messages."""
_CLASS_STEP: Final = math.log(1.3)


@dataclass(frozen=True)
class Arrivals:
    """Curve of a queue's messages over time, linear between points. `times_ms`: at least two times,
    epoch ms, ascending. `offsets`: queue offset after the last message at each time.
    `record_bytes`: mean size of a message in the log."""

    times_ms: Floats
    offsets: Floats
    record_bytes: float

    @property
    def messages(self) -> float:
        return float(self.offsets[-1] - self.offsets[0])

    @property
    def span_ms(self) -> float:
        return float(self.times_ms[-1] - self.times_ms[0])

    @property
    def messages_per_s(self) -> float:
        """Mean rate over the whole curve."""
        return self.messages * 1000 / self.span_ms if self.span_ms > 0 else 0.0

    @cached_property
    def active_share(self) -> float:
        """Share of the time with arrivals, 1 for a steady queue."""
        spans = np.diff(self.times_ms)
        active = float(spans[np.diff(self.offsets) > 0].sum())
        return active / self.span_ms if self.span_ms > 0 else 1.0

    def count_until(self, times_ms: Floats) -> Longs:
        """Return the queue offset after the last message at each given time."""
        found: Longs = np.floor(
            np.interp(times_ms, self.times_ms, self.offsets) + _ROUNDING
        ).astype(np.int64)
        return found

    def time_of(self, offset: float) -> float:
        """Return the arrival time of the message at `offset`, epoch ms. Offsets outside of the
        curve get the time of its first or last point."""
        wanted = offset + 1
        index = int(np.searchsorted(self.offsets, wanted - _ROUNDING, side="left"))
        if index <= 0:
            return float(self.times_ms[0])
        if index >= len(self.offsets):
            return float(self.times_ms[-1])
        low, high = float(self.offsets[index - 1]), float(self.offsets[index])
        share = min(max((wanted - low) / (high - low), 0.0), 1.0)
        before, after = float(self.times_ms[index - 1]), float(self.times_ms[index])
        return before + share * (after - before)

    @property
    def is_steady(self) -> bool:
        """Whether the rates of about 12 intervals are nearly equal."""
        count = min(len(self.times_ms), _COMPARED_PARTS + 1)
        times = np.linspace(self.times_ms[0], self.times_ms[-1], count)
        rates = np.diff(np.interp(times, self.times_ms, self.offsets)) / np.diff(times)
        return len(rates) == 1 or float(rates.std()) <= _STEADY_SPREAD * float(rates.mean())

    def between(self, begin_ms: float, end_ms: float) -> Arrivals:
        """Return the part of the curve between two times."""
        inner = (self.times_ms > begin_ms) & (self.times_ms < end_ms)
        times = np.concatenate([[begin_ms], self.times_ms[inner], [end_ms]])
        return Arrivals(times, np.interp(times, self.times_ms, self.offsets), self.record_bytes)

    def smooth(self) -> Arrivals:
        """Return a curve with a constant rate, from the first to the last point."""
        ends = [0, -1]
        return Arrivals(self.times_ms[ends], self.offsets[ends], self.record_bytes)

    def repeat(self, until_ms: float) -> Arrivals:
        """Return this curve, repeated until `until_ms`. A curve of two points continues as a
        straight line."""
        span, total = self.span_ms, self.messages
        if len(self.times_ms) == 2:
            turns = max(until_ms - self.times_ms[0], span) / span
            times = np.array([self.times_ms[0], self.times_ms[0] + turns * span])
            offsets = np.array([self.offsets[0], self.offsets[0] + turns * total])
        else:
            count = int(np.ceil(max(until_ms - self.times_ms[-1], 0) / span))
            later = range(1, count + 1)
            times = np.concatenate([self.times_ms, *(self.times_ms[1:] + n * span for n in later)])
            offsets = np.concatenate([self.offsets, *(self.offsets[1:] + n * total for n in later)])
        return Arrivals(times, offsets, self.record_bytes)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """Load of one queue. `arrivals`: the whole known history. `retention_hours`: retention in the
    tier."""

    key: QueueKey
    arrivals: Arrivals
    retention_hours: int
    is_tiered: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a group in a queue, linear between points. `times_ms`: epoch ms. `offsets`:
    offsets of the group at these times. `gets`: number of gets until then. No column decreases."""

    times_ms: Floats
    offsets: Floats
    gets: Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages [first, last) of a queue that a group read between two times, epoch ms. Without
    `progress`, the group reads at a constant rate, PULL_MESSAGES per get."""

    group: str
    key: QueueKey
    first: int
    last: int
    begin_ms: float
    end_ms: float
    progress: Progress | None = None

    @property
    def messages(self) -> int:
        return self.last - self.first

    def time_of(self, offset: float) -> float:
        """Return the time at which the group had read all messages before `offset`, epoch ms."""
        if self.progress is not None:
            return float(np.interp(offset, self.progress.offsets, self.progress.times_ms))
        pace_ms = (self.end_ms - self.begin_ms) / self.messages
        return self.begin_ms + (offset - self.first) * pace_ms

    def count_gets(self, first: float, last: float) -> float:
        """Return the number of gets between two offsets."""
        if self.progress is None:
            return (last - first) / PULL_MESSAGES
        found = np.interp([first, last], self.progress.offsets, self.progress.gets)
        return float(found[1] - found[0])


@dataclass(frozen=True, slots=True)
class Observed:
    """Observation of a broker between two times, epoch ms. `arrivals`: recorded arrival curves of
    queues. `missing`: sentences for the report about damaged or missing parts."""

    begin_ms: float
    end_ms: float
    readings: Sequence[Reading]
    arrivals: Mapping[QueueKey, Arrivals] = field(default_factory=dict)
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Load between two times, epoch ms. `assumed`: sentences for the report about assumptions."""

    begin_ms: float
    end_ms: float
    queues: Sequence[QueueLoad]
    readings: Sequence[Reading]
    assumed: Sequence[str] = field(default=())

    @property
    def span_ms(self) -> float:
        return self.end_ms - self.begin_ms

    def window_of(self, load: QueueLoad) -> Arrivals:
        """Return the arrivals of a queue within the time of the workload."""
        return load.arrivals.between(self.begin_ms, self.end_ms)


@dataclass(frozen=True, slots=True)
class ColdRun:
    """Messages [first, last) of a reading that are read from the tier."""

    reading: Reading
    first: int
    last: int

    @property
    def messages(self) -> int:
        return self.last - self.first

    @property
    def span_ms(self) -> float:
        """Duration, at least one millisecond."""
        return max(self.reading.time_of(self.last) - self.reading.time_of(self.first), 1.0)

    @property
    def gets(self) -> float:
        """Number of gets, at least one."""
        return max(self.reading.count_gets(self.first, self.last), 1.0)


def find_cold_runs(reading: Reading, arrivals: Arrivals, leaves_ms: LeavesAt) -> Iterator[ColdRun]:
    """Yield the parts of a reading whose messages had already left the local store."""
    points = len(reading.progress.offsets) if reading.progress is not None else 0
    count = min(max(points, PARTS), MAX_PARTS, reading.messages)
    bounds = [reading.first + reading.messages * n // count for n in range(count + 1)]
    start: int | None = None
    for first, last in pairwise(bounds):
        middle = (first + last - 1) / 2
        is_cold = reading.time_of(middle + 0.5) >= leaves_ms(arrivals.time_of(middle))
        if is_cold and start is None:
            start = first
        elif not is_cold and start is not None:
            yield ColdRun(reading, start, first)
            start = None
    if start is not None:
        yield ColdRun(reading, start, reading.last)


@dataclass(frozen=True, slots=True)
class QueueClass:
    """Queues with similar growth. One simulated queue represents them. `arrivals`: its arrival
    curve within the time of the workload."""

    arrivals: Arrivals
    members: Sequence[QueueLoad]

    @property
    def bytes_per_s(self) -> float:
        """Log bytes per second of all queues of the class."""
        return sum(
            self.arrivals.messages_per_s * member.arrivals.record_bytes for member in self.members
        )


def classify(workload: Workload) -> list[QueueClass]:
    """Group the active tiered queues by rate, message size and share of active time."""
    active: list[tuple[QueueLoad, Arrivals]] = []
    for load in workload.queues:
        window = workload.window_of(load)
        if load.is_tiered and window.messages >= 1 and window.record_bytes > 0:
            active.append((load, window))
    if len(active) <= EXACT_QUEUES:
        return [QueueClass(window, [load]) for load, window in active]
    groups: defaultdict[tuple[int, ...], list[tuple[QueueLoad, Arrivals]]] = defaultdict(list)
    for load, window in active:
        rate, size = (
            round(math.log(value) / _CLASS_STEP)
            for value in (window.messages_per_s, window.record_bytes)
        )
        groups[rate, size, round(4 * window.active_share)].append((load, window))
    classes = []
    for group in groups.values():
        group.sort(key=lambda item: item[1].messages)
        classes.append(QueueClass(group[len(group) // 2][1], [load for load, _ in group]))
    return classes
