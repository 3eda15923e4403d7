"""Time that a test controls, for threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from tieredstore.clock import SystemClock

_LOOK_MS: Final = 20


class MovingClock(SystemClock):
    """System clock that a test can advance. Waiting threads wake within milliseconds after a jump
    if their time has come."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        """Milliseconds by which this clock is ahead of the machine's clock."""

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        deadline_ms = self.monotonic_ms() + timeout_ms
        while not event.is_set():
            left_ms = deadline_ms - self.monotonic_ms()
            if left_ms <= 0:
                break
            event.wait(min(left_ms, _LOOK_MS) / 1000)
        return event.is_set()

    def advance(self, delta_ms: int) -> None:
        """Advance the clock."""
        self.ahead_ms += delta_ms


class MovingLoop(asyncio.SelectorEventLoop):
    """Event loop whose timers follow a `MovingClock`. Call `call_soon_threadsafe` to make the loop
    check its timers."""

    def __init__(self, clock: MovingClock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return super().time() + self._clock.ahead_ms / 1000
