"""TokenBucket: so much a second, and not more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tieredstore.clock import Clock

LOOK_MS: Final = 500
"""How long a wait goes on before it looks whether the rate has changed."""


class TokenBucket:
    """Lets `rate` units a second through, after a pause at most one second's worth at once.

    What is taken may be larger than that: it goes as soon as nothing is owed, and who comes next
    waits until it is paid. So nothing has to be cut to pieces. Thread-safe; who waits holds no lock
    of the bucket's.

    rate: units a second, asked each time; 0 for no limit. is_stopping: ends all waits.
    """

    def __init__(self, rate: Callable[[], int], clock: Clock, is_stopping: threading.Event) -> None:
        self._rate = rate
        self._clock = clock
        self._is_stopping = is_stopping
        self._lock = threading.Lock()
        self._level = 0.0  # what may be taken now; below 0: what is owed
        self._seen_ms: int | None = None

    def take(self, amount: int) -> int:
        """Wait until something may be taken, and take that much; returns how long it waited, ms. A
        stop ends the wait, and takes all the same."""
        begin_ms = self._clock.monotonic_ms()
        while (wait_ms := self._try(amount)) and not self._is_stopping.is_set():
            self._clock.wait(self._is_stopping, min(wait_ms, LOOK_MS))
        return self._clock.monotonic_ms() - begin_ms

    def take_now(self, amount: int) -> bool:
        """Take that much if it needs no wait; tells whether it did."""
        return self._try(amount) == 0

    def give_back(self, amount: int) -> None:
        """Undo a `take` of what was not used."""
        with self._lock:
            self._level += amount

    def _try(self, amount: int) -> int:
        """Take if nothing is owed and return 0; else return about how long that takes, ms."""
        rate = self._rate()
        if rate <= 0:
            self._seen_ms = None  # a limit that is set later begins without a debt
            return 0
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._seen_ms is None:
                self._level = float(rate)
            else:
                passed = max(now_ms - self._seen_ms, 0) * rate / 1000
                self._level = min(self._level + passed, float(rate))
            self._seen_ms = now_ms
            if self._level <= 0:
                return int(-self._level * 1000 / rate) + 1
            self._level -= amount
        return 0
