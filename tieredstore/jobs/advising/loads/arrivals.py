"""Arrivals: how many messages a queue got until when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arrivals:
    """A curve of a queue's messages over time, even between its points.

    times_ms: of the points, epoch ms, ascending, two at least; offsets: queue offset behind the
    last message at that time, never falling; record_bytes: mean size of a message in the log.
    """

    times_ms: Floats
    offsets: Floats
    record_bytes: float

    @classmethod
    def steady(
        cls, begin_ms: float, interval_ms: float, record_bytes: float, end_ms: float
    ) -> Arrivals:
        """Make the curve of a queue that gets its first message then, and one each interval."""
        count = (end_ms - begin_ms) / interval_ms + 1
        times = np.array([begin_ms - interval_ms, end_ms])
        return cls(times, np.array([0.0, count]), record_bytes)

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
        """Share of the time in which messages came; 1 for a steady queue."""
        spans = np.diff(self.times_ms)
        active = float(spans[np.diff(self.offsets) > 0].sum())
        return active / self.span_ms if self.span_ms > 0 else 1.0

    def count_until(self, times_ms: Floats) -> Longs:
        """Return the queue offsets behind the last messages at these times."""
        found: Longs = np.floor(
            np.interp(times_ms, self.times_ms, self.offsets) + _ROUNDING
        ).astype(np.int64)
        return found

    def time_of(self, offset: float) -> float:
        """Return when the message of a queue offset came; the first or the last point's time for
        one outside."""
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
        """Whether messages come at about one rate all the time, seen from some distance."""
        times = np.linspace(
            self.times_ms[0], self.times_ms[-1], min(len(self.times_ms), _LOOKS + 1)
        )
        rates = np.diff(np.interp(times, self.times_ms, self.offsets)) / np.diff(times)
        return len(rates) == 1 or float(rates.std()) <= _STEADY * float(rates.mean())

    def smooth(self) -> Arrivals:
        """Return the curve as a straight line."""
        ends = [0, -1]
        return Arrivals(self.times_ms[ends], self.offsets[ends], self.record_bytes)

    def repeat(self, until_ms: float) -> Arrivals:
        """Return the curve that goes on as it was, over and over, until a time."""
        span = self.span_ms
        if len(self.times_ms) == 2:
            turns = max(until_ms - self.times_ms[0], span) / span
            ends = self.times_ms[0] + turns * span, self.offsets[0] + turns * self.messages
            return Arrivals(
                np.array([self.times_ms[0], ends[0]]),
                np.array([self.offsets[0], ends[1]]),
                self.record_bytes,
            )
        times, offsets = [self.times_ms], [self.offsets]
        total = self.messages
        for turn in range(1, int(np.ceil(max(until_ms - self.times_ms[-1], 0) / span)) + 1):
            times.append(self.times_ms[1:] + turn * span)
            offsets.append(self.offsets[1:] + turn * total)
        return Arrivals(np.concatenate(times), np.concatenate(offsets), self.record_bytes)


_LOOKS = 48
"""So many parts are compared at most."""
_STEADY = 0.5
"""Times the mean rate: so much rates may spread and still be one."""
_ROUNDING = 1e-6
"""Of a message: what the arithmetic may lack."""
