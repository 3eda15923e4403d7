"""Workload: what came to the queues of a broker, and who read it when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tieredstore.contracts.dispatch_source import QueueKey

if TYPE_CHECKING:
    from tieredstore.jobs.advising.loads.arrivals import Arrivals
    from tieredstore.jobs.advising.loads.snapshots import Snapshot

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
class Reading:
    """Messages [first, last) of a queue that a group read between two times, epoch ms, evenly.

    pull: messages of a get; is_scattered: in gets that do not follow one another.
    """

    group: str
    key: QueueKey
    first: int
    last: int
    begin_ms: float
    end_ms: float
    pull: int = PULL_MESSAGES

    @property
    def messages(self) -> int:
        return self.last - self.first

    @property
    def messages_per_s(self) -> float:
        return self.messages * 1000 / max(self.end_ms - self.begin_ms, 1.0)


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


def find_readings(snapshots: Sequence[Snapshot]) -> Iterator[Reading]:
    """Yield what groups read between each two snapshots that follow one another. Who went back
    reads from there on; who is new began somewhere between, and is left out until the next."""
    for before, after in pairwise(snapshots):
        if after.taken_ms <= before.taken_ms:
            continue
        for place, last in after.offsets.items():
            first = before.offsets.get(place)
            if first is not None and first < last:
                times = float(before.taken_ms), float(after.taken_ms)
                yield Reading(place.group, place.key, first, last, *times)


@dataclass(frozen=True, slots=True)
class ColdRun:
    """Messages [first, last) of a reading that the tier answers."""

    reading: Reading
    first: int
    last: int

    @property
    def messages(self) -> int:
        return self.last - self.first


def find_cold_runs(
    reading: Reading, arrivals: Arrivals, leaves_ms: LeavesAt, parts: int = 64
) -> Iterable[ColdRun]:
    """Find the parts of a reading that come after their messages left what answers them first.

    leaves_ms: from when on the tier answers, by the store time of a message. The reading is looked
    at in so many parts.
    """
    count = min(parts, reading.messages)
    bounds = [reading.first + reading.messages * n // count for n in range(count + 1)]
    pace_ms = (reading.end_ms - reading.begin_ms) / reading.messages
    start: int | None = None
    for first, last in pairwise(bounds):
        middle = (first + last - 1) / 2
        read_ms = reading.begin_ms + (middle + 0.5 - reading.first) * pace_ms
        is_cold = read_ms >= leaves_ms(arrivals.time_of(middle))
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
