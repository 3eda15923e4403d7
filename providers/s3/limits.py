"""How much an object store is asked for at once and a second, and how that yields to SlowDown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tieredstore.clock import SYSTEM_CLOCK, Clock


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


class TokenBucket:
    """At most `rate` units a second on average, a second's worth at once; 0 for no limit.

    More than that at once is let through in debt: those who come later wait for it. What is urgent
    waits only for the debt of what is urgent, too; all else waits for both.
    """

    def __init__(
        self,
        rate: int,
        clock: Clock = SYSTEM_CLOCK,
        monotonic_ms: Callable[[], float] = _monotonic_ms,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._monotonic_ms = monotonic_ms
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._balance = self._urgent_balance = float(rate)
        self._seen_ms = monotonic_ms()

    def take(self, amount: int, *, urgent: bool = False) -> float:
        """Wait until `amount` units may be used; returns the ms waited."""
        if not self._rate or not amount:
            return 0.0
        with self._lock:
            now = self._monotonic_ms()
            earned = (now - self._seen_ms) * self._rate / 1000
            self._seen_ms = now
            self._balance = min(self._rate, self._balance + earned) - amount
            self._urgent_balance = min(self._rate, self._urgent_balance + earned)
            if urgent:
                self._urgent_balance -= amount
            balance = self._urgent_balance if urgent else self._balance
            wait_ms = max(0.0, -balance * 1000 / self._rate)
        if wait_ms:
            self._clock.wait(self._closed, int(wait_ms) + 1)
        return wait_ms

    def close(self) -> None:
        """Let nobody wait any more."""
        self._closed.set()


class Gate:
    """Requests at once: at most `most`, halved by each wave of refusals, and from then on one more
    for every round that goes well."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._running = 0
        self._wave = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        with self._changed:
            return int(self._limit)

    @contextmanager
    def permit(self) -> Iterator[int]:
        """Hold a place for one request; the value is for `note_refusal`."""
        with self._changed:
            while self._running >= int(self._limit):
                self._changed.wait()
            self._running += 1
            wave = self._wave
        try:
            yield wave
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def note_refusal(self, wave: int) -> None:
        """Halve the limit, as the server asked for less. Requests that were sent together count
        once."""
        with self._changed:
            if wave == self._wave:
                self._limit = max(1.0, self._limit / 2)
                self._wave += 1

    def note_success(self) -> None:
        with self._changed:
            if self._limit < self._most:
                self._limit = min(float(self._most), self._limit + 1 / self._limit)
                self._changed.notify()


class RetryQuota:
    """How many requests may be repeated while most requests fail: `most` in a row, and one more for
    every `_SUCCESSES` that succeed. Then each request has one attempt."""

    _SUCCESSES = 5

    def __init__(self, most: int = 100) -> None:
        self._most = self._left = most * self._SUCCESSES
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self._left < self._SUCCESSES:
                return False
            self._left -= self._SUCCESSES
            return True

    def note_success(self) -> None:
        with self._lock:
            self._left = min(self._most, self._left + 1)
