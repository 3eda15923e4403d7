"""Time as a dependency, so that tests move it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

_MONOTONIC: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the store needs to know about time."""

    def now_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time that only passes, milliseconds from an unknown beginning."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Block until `event` is set or `timeout_ms` has passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        # The time that a machine sleeps counts, where the system can tell.
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)


class ManualClock:
    """A clock that stands still until it is told to move; `wait` moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, delta_ms: int) -> None:
        """Let time pass."""
        self._now_ms += delta_ms
        self._monotonic_ms += delta_ms

    def advance_to(self, now_ms: int) -> None:
        """Let time pass until the wall clock shows this."""
        self.advance(now_ms - self._now_ms)

    def set(self, now_ms: int) -> None:
        """Set the wall clock: it jumps, and no time has passed."""
        self._now_ms = now_ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if not event.is_set():
            self.advance(timeout_ms)
        return event.is_set()


_log = logging.getLogger(__name__)
_WORTH_TELLING_MS: Final = 3_600_000
SETTLE_MS: Final = 24 * 3_600_000
"""How long a wall clock must have been ahead before retention believes it."""


class RetentionClock:
    """The time by which things grow too old: the wall clock, as far as it can be believed.

    It begins at the wall clock's time, at that of the newest message if this is earlier, and passes
    as monotonic time does. A wall clock that is further ahead (it was set forward, or the machine
    began with a wrong one, or nothing ran for a while) is believed once it has been ahead for
    `SETTLE_MS` without a break. One that is behind is followed at once: that deletes nothing.
    Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._believed_ms: int | None = None  # wall clock minus monotonic time
        self._ahead_ms = 0  # the least of it since the wall clock is ahead
        self._ahead_since_ms: int | None = None  # monotonic
        self._is_told = False

    def begin(self, newest_ms: int = -1) -> None:
        """Begin again, with the store time of the newest message; -1 without one."""
        with self._lock:
            monotonic_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            start_ms = min(wall_ms, newest_ms) if newest_ms >= 0 else wall_ms
            self._believed_ms = start_ms - monotonic_ms
            self._ahead_since_ms = None

    def now_ms(self) -> int:
        """Return the time, epoch milliseconds. Call it now and then: what a call does not see does
        not count as a break."""
        if self._believed_ms is None:
            self.begin()
        with self._lock:
            assert self._believed_ms is not None
            monotonic_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            difference_ms = wall_ms - monotonic_ms
            if difference_ms <= self._believed_ms:
                self._ahead_since_ms, self._is_told = None, False
                return wall_ms
            if self._ahead_since_ms is None:
                self._ahead_since_ms, self._ahead_ms = monotonic_ms, difference_ms
            self._ahead_ms = min(self._ahead_ms, difference_ms)
            if monotonic_ms - self._ahead_since_ms >= SETTLE_MS:
                self._believed_ms, self._ahead_since_ms = self._ahead_ms, None
            elif not self._is_told and difference_ms - self._believed_ms >= _WORTH_TELLING_MS:
                self._is_told = True
                _log.warning(
                    "the wall clock is %d s ahead of the newest message and the time that has "
                    "passed since: retention does not follow it for a day",
                    (difference_ms - self._believed_ms) // 1000,
                )
            return monotonic_ms + self._believed_ms

    @property
    def is_behind(self) -> bool:
        """Whether the wall clock is ahead of it now and not believed yet."""
        return self._ahead_since_ms is not None


SYSTEM_CLOCK = SystemClock()
