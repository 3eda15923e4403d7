"""Time as a dependency, so that tests move it."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the store needs to know about time."""

    def now_ms(self) -> int:
        """Return the wall clock, epoch milliseconds."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Block until `event` is set or `timeout_ms` has passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)


class ManualClock:
    """A clock that stands still until it is told to move; `wait` moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, delta_ms: int) -> None:
        self._now_ms += delta_ms

    def set(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if not event.is_set():
            self._now_ms += timeout_ms
        return event.is_set()


SYSTEM_CLOCK = SystemClock()
