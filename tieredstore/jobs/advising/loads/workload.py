"""Workload: what came to the queues of a broker, and who read it when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey

if TYPE_CHECKING:
    from tieredstore.jobs.advising.loads.arrivals import Arrivals, Floats

PULL_MESSAGES: Final = 32
"""What RocketMQ's clients ask for at a time unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """A queue. arrivals: all that is known of it, from its oldest message on; is_tiered: whether it
    goes to the tier; retention_hours: how long it is kept there."""

    key: QueueKey
    arrivals: Arrivals
    retention_hours: int
    is_tiered: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """How a group came along in a queue, even between these points: when it was at an offset,
    epoch ms, and after how many gets. Nothing falls."""

    times_ms: Floats
    offsets: Floats
    gets: Floats


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages [first, last) of a queue that a group read between two times, epoch ms: as its
    progress says, and where that is not known evenly, PULL_MESSAGES a get."""

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
        """Return when the messages before an offset had been read."""
        if self.progress is not None:
            return float(np.interp(offset, self.progress.offsets, self.progress.times_ms))
        pace_ms = (self.end_ms - self.begin_ms) / self.messages
        return self.begin_ms + (offset - self.first) * pace_ms

    def count_gets(self, first: float, last: float) -> float:
        """Return in how many gets the messages between two offsets were read."""
        if self.progress is None:
            return (last - first) / PULL_MESSAGES
        found = np.interp([first, last], self.progress.offsets, self.progress.gets)
        return float(found[1] - found[0])


@dataclass(frozen=True, slots=True)
class Workload:
    """Between two times, epoch ms. assumed: what was not known and is assumed, for people."""

    begin_ms: float
    end_ms: float
    queues: Sequence[QueueLoad]
    readings: Sequence[Reading]
    assumed: Sequence[str] = field(default=())

    @property
    def span_ms(self) -> float:
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True)
class ColdRun:
    """Messages [first, last) of a reading that the tier answers."""

    reading: Reading
    first: int
    last: int

    @property
    def messages(self) -> int:
        return self.last - self.first

    @property
    def span_ms(self) -> float:
        """How long it took; a millisecond at least."""
        return max(self.reading.time_of(self.last) - self.reading.time_of(self.first), 1.0)

    @property
    def gets(self) -> float:
        """In so many gets it was read; one at least."""
        return max(self.reading.count_gets(self.first, self.last), 1.0)


PARTS: Final = 64
"""In so many a reading is looked at at least; in one for each point of its progress, up to
MOST_PARTS."""
MOST_PARTS: Final = 512


def find_cold_runs(reading: Reading, arrivals: Arrivals, leaves_ms: LeavesAt) -> Iterable[ColdRun]:
    """Find the parts of a reading that come after their messages left what answers them first.

    leaves_ms: from when on the tier answers, by the store time of a message.
    """
    points = len(reading.progress.offsets) if reading.progress is not None else 0
    count = min(max(points, PARTS), MOST_PARTS, reading.messages)
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


if TYPE_CHECKING:
    from collections.abc import Callable

    LeavesAt = Callable[[float], float]
