"""Clocks, which tests can control."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Clock of the store."""

    def now_ms(self) -> int:
        """Return the time of the wall clock (epoch ms)."""

    def monotonic_ms(self) -> int:
        """Return a time that never decreases, in milliseconds since an arbitrary moment."""

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Block until `event` is set or `timeout_ms` has passed. Returns whether it is set."""


class SystemClock:
    """Clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        # Includes the time for which the machine slept, if the system can tell.
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(min(timeout_ms / 1000, threading.TIMEOUT_MAX))


class ManualClock:
    """Clock that advances only on request. `wait` advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, delta_ms: int) -> None:
        """Advance the time."""
        self._now_ms += delta_ms
        self._monotonic_ms += delta_ms

    def advance_to(self, now_ms: int) -> None:
        """Advance the clock until the wall clock shows this time."""
        self.advance(now_ms - self._now_ms)

    def set(self, now_ms: int) -> None:
        """Set the wall clock without advancing the monotonic time."""
        self._now_ms = now_ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if not event.is_set():
            self.advance(timeout_ms)
        return event.is_set()


_log = logging.getLogger(__name__)
_WARNED_MS: Final = 3_600_000
SETTLE_MS: Final = 24 * 3_600_000
"""Minimum time (ms) that the wall clock must stay ahead of the retention clock before the retention
clock follows it."""


class RetentionClock:
    """Clock for retention, based on the wall clock. Thread-safe.

    It starts at the wall clock's time, or at the time of the newest message if that is earlier, and
    advances with monotonic time. An earlier wall clock is followed immediately, because an earlier
    time deletes nothing. If the wall clock jumps ahead, was wrong at the start, or ran while no
    process did, the retention clock follows only after `SETTLE_MS` without a break.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._believed_ms: int | None = None  # wall clock minus monotonic time
        self._ahead_ms = 0  # its minimum since the wall clock is ahead
        self._ahead_since_ms: int | None = None  # monotonic
        self._is_warned = False

    def begin(self, newest_ms: int = -1) -> None:
        """Restart the clock. `newest_ms`: store time of the newest message, or -1."""
        with self._lock:
            monotonic_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            start_ms = min(wall_ms, newest_ms) if newest_ms >= 0 else wall_ms
            self._believed_ms = start_ms - monotonic_ms
            self._ahead_since_ms = None

    def now_ms(self) -> int:
        """Return the current time of the retention clock (epoch ms). Must be called regularly,
        because only a call detects that a wall clock that was ahead has been set back."""
        if self._believed_ms is None:
            self.begin()
        with self._lock:
            assert self._believed_ms is not None
            monotonic_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            difference_ms = wall_ms - monotonic_ms
            if difference_ms <= self._believed_ms:
                self._ahead_since_ms, self._is_warned = None, False
                return wall_ms
            if self._ahead_since_ms is None:
                self._ahead_since_ms, self._ahead_ms = monotonic_ms, difference_ms
            self._ahead_ms = min(self._ahead_ms, difference_ms)
            if monotonic_ms - self._ahead_since_ms >= SETTLE_MS:
                self._believed_ms, self._ahead_since_ms = self._ahead_ms, None
            elif not self._is_warned and difference_ms - self._believed_ms >= _WARNED_MS:
                self._is_warned = True
                _log.warning(
                    "the wall clock is %d s ahead of the newest message and the time that has "
                    "passed since: retention does not follow it for a day",
                    (difference_ms - self._believed_ms) // 1000,
                )
            return monotonic_ms + self._believed_ms

    @property
    def is_behind(self) -> bool:
        """Whether the wall clock is ahead and the retention clock does not follow it yet."""
        return self._ahead_since_ms is not None


SYSTEM_CLOCK = SystemClock()
