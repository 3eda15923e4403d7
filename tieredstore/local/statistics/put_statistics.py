"""What is counted of puts: how long they take, how long they have the lock, and what is refused.

Only puts that take the general way are timed; `PutSampler` sends one queue that way now and then,
so that the short way pays nothing.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from types import TracebackType
from typing import Final

import msgspec

from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus

TIME_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Java's distribution of put times: less than 1 ms, up to 10 ms, … and beyond 10 s."""
SLOW_PUT_MS: Final = 500
MAX_REASONS: Final = 64
"""Refusals that are remembered, so as not to be logged again; then all are forgotten."""
NS_PER_MS: Final = 1_000_000
_log = logging.getLogger(__name__)


class TimeDistribution(msgspec.Struct):
    """counts[i]: times of at most TIME_BOUNDS_MS[i], the last those beyond. Bare: callers lock."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TIME_BOUNDS_MS) + 1))
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, time_ms: float) -> None:
        """Count a time."""
        self.counts[bisect.bisect_left(TIME_BOUNDS_MS, time_ms)] += 1
        self.total_ms += time_ms
        self.max_ms = max(self.max_ms, time_ms)


class PutStatistics:
    """Counts of one store since it was opened. Thread-safe.

    refused: by status. slow_puts: puts of SLOW_PUT_MS and more, which are logged.
    """

    def __init__(self) -> None:
        self.put_times = TimeDistribution()
        self.lock_times = TimeDistribution()
        self.refused: dict[PutMessageStatus, int] = {}
        self.slow_puts = 0
        self._lock = threading.RLock()  # a signal handler may put inside of a put
        self._logged: set[tuple[PutMessageStatus, str]] = set()

    def observe_put(self, result: PutMessageResult, begun_ns: int) -> PutMessageResult:
        """Count a put that began at this time (`time.perf_counter_ns`); returns its result."""
        elapsed_ms = self.report_if_slow("a put", begun_ns, result.wrote_bytes)
        with self._lock:
            self.put_times.add(elapsed_ms)
        return result if result.ok else self.observe_refusal(result)

    def observe_refusal(self, result: PutMessageResult) -> PutMessageResult:
        """Count a refused put, and log it when it is the first one with its reason."""
        status, reason = result.status, result.reason
        with self._lock:
            self.refused[status] = self.refused.get(status, 0) + 1
            if (status, reason) in self._logged:
                return result
            if len(self._logged) >= MAX_REASONS:
                self._logged.clear()
            self._logged.add((status, reason))
        _log.warning("a put is refused (%s, logged once): %s", status.name, reason)
        return result

    def forget_reasons(self) -> None:
        """Log refusals again: what was wrong has changed."""
        with self._lock:
            self._logged.clear()

    def report_if_slow(self, what: str, begun_ns: int, size_bytes: int) -> float:
        """Log and count a part of a put, of records of so many bytes, that began at this time and
        took SLOW_PUT_MS; returns how long it took, ms."""
        elapsed_ms = (time.perf_counter_ns() - begun_ns) / NS_PER_MS
        if elapsed_ms >= SLOW_PUT_MS:
            self.report_slow_put(what, elapsed_ms, size_bytes)
        return elapsed_ms

    def report_slow_put(self, what: str, elapsed_ms: float, size_bytes: int) -> None:
        """Log and count something that took a put too long. size_bytes: of its records."""
        with self._lock:
            self.slow_puts += 1
        _log.warning("%s of %d bytes took %.0f ms", what, size_bytes, elapsed_ms)

    def time_lock(self) -> LockTimer:
        """Make what measures how long the put lock is held, in a `with` block inside of it."""
        return LockTimer(self)

    def observe_lock(self, elapsed_ms: float) -> None:
        """Count for how long a put has had the lock."""
        with self._lock:
            self.lock_times.add(elapsed_ms)


class LockTimer:
    """Measures a `with` block."""

    __slots__ = ("_begun_ns", "_statistics")

    def __init__(self, statistics: PutStatistics) -> None:
        self._statistics = statistics
        self._begun_ns = 0

    def __enter__(self) -> None:
        self._begun_ns = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._statistics.observe_lock((time.perf_counter_ns() - self._begun_ns) / NS_PER_MS)
