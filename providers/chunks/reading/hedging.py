"""A second, identical read when the first one takes longer than almost all others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from tieredstore.providers.chunks.retries import carry_budget

T = TypeVar("T")
_KEPT_DURATIONS = 256
_FEWEST_DURATIONS = 20


class Hedge:
    """At most `share` of all calls are made twice, after the running p95 and never before
    `min_ms`. Calls must be reads: both may be carried out."""

    def __init__(
        self, monotonic_ms: Callable[[], int], *, min_ms: int, share: float, threads: int
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._min_ms = min_ms
        self._share = share
        self._pool = ThreadPoolExecutor(threads, "tiered-hedge")
        self._durations: deque[int] = deque(maxlen=_KEPT_DURATIONS)
        self._lock = threading.Lock()
        self.call_count = 0
        self.extra_count = 0

    def call(self, read: Callable[[], T]) -> T:
        """Return the result of the read that ends first, or its error when there is no other."""
        with self._lock:
            self.call_count += 1
            delay_ms = self._delay_ms()
        read = carry_budget(read)
        first = self._pool.submit(self._time_read, read)
        futures: set[Future[T]] = {first}
        if delay_ms is not None:
            done, _ = wait(futures, delay_ms / 1000)
            if not done and self._take_extra():
                futures.add(self._pool.submit(self._time_read, read))
        while True:
            done, futures = wait(futures, return_when=FIRST_COMPLETED)
            good = [future for future in done if future.exception() is None]
            if good or not futures:
                return (good or list(done))[0].result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _time_read(self, read: Callable[[], T]) -> T:
        begin_ms = self._monotonic_ms()
        result = read()
        self._durations.append(self._monotonic_ms() - begin_ms)
        return result

    def _delay_ms(self) -> int | None:
        durations = sorted(self._durations.copy())
        if len(durations) < _FEWEST_DURATIONS:
            return None
        return max(self._min_ms, durations[len(durations) * 95 // 100])

    def _take_extra(self) -> bool:
        with self._lock:
            if self.extra_count + 1 > self.call_count * self._share:
                return False
            self.extra_count += 1
            return True
