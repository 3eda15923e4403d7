"""Limits on the bytes per second that a broker writes to its tier and reads from it. Maintenance of
the object store (merging, garbage) is not counted. Listings and deletions are not limited."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import (
    BoundedStop,
    Buffer,
    Companion,
    FileSegment,
    PairedSegment,
    SegmentProvider,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment, find_layer
from tieredstore.errors import TieredStoreError
from tieredstore.metrics import Metrics

LOOK_MS: Final = 500
"""Interval (ms) at which a caller that waits for a limit checks whether the limit was changed."""


class TokenBucket:
    """Token bucket that holds at most one second's worth of tokens. A caller may take any amount as
    soon as the bucket is not empty, so requests are never split. A debt makes the next callers wait
    until it is paid off. Thread-safe. A waiting caller does not hold the lock.

    `rate`: callable that returns the tokens per second (0: no limit).
    `is_stopping`: event that wakes up all waiting callers.
    """

    def __init__(self, rate: Callable[[], int], clock: Clock, is_stopping: threading.Event) -> None:
        self._rate = rate
        self._clock = clock
        self._is_stopping = is_stopping
        self._lock = threading.Lock()
        self._level = 0.0  # amount that may be taken now. Below 0: debt
        self._seen_ms: int | None = None

    def take(self, amount: int) -> int:
        """Wait until the bucket is not empty, then take `amount`. Returns the waiting time (ms). A
        stop ends the wait without taking anything."""
        begin_ms = self._clock.monotonic_ms()
        while (wait_ms := self._try(amount)) and not self._is_stopping.is_set():
            self._clock.wait(self._is_stopping, min(wait_ms, LOOK_MS))
        return self._clock.monotonic_ms() - begin_ms

    def take_now(self, amount: int) -> bool:
        """Take `amount` if this needs no wait. Returns whether it was taken."""
        return self._try(amount) == 0

    def give_back(self, amount: int) -> None:
        """Refund an amount that was taken but not used."""
        with self._lock:
            self._level += amount

    def _try(self, amount: int) -> int:
        """Take `amount` and return 0 if the bucket is not empty. Otherwise return the approximate
        waiting time (ms)."""
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


LIMIT_WAITS: Final = "rocketmq_tiered_store_x_limit_wait_milliseconds_total"


class Limit:
    """Limits the bytes per second of reads or of writes. Thread-safe."""

    def __init__(
        self,
        operation: str,
        bytes_per_s: Callable[[], int],
        clock: Clock,
        metrics: Metrics,
        is_stopping: threading.Event,
    ) -> None:
        self._operation = operation
        self._metrics = metrics
        self._bytes = TokenBucket(bytes_per_s, clock, is_stopping)

    def wait(self, size_bytes: int) -> None:
        """Wait until a request of the given size may begin."""
        waited_ms = self._bytes.take(size_bytes)
        if waited_ms:
            self._metrics.count(LIMIT_WAITS, waited_ms, operation=self._operation)

    def give_back(self, size_bytes: int) -> None:
        """Refund the bytes of a failed request."""
        self._bytes.give_back(size_bytes)

    def passes_now(self, size_bytes: int) -> bool:
        """Take the bytes of a request if this needs no wait. Returns whether they were taken."""
        return self._bytes.take_now(size_bytes)


class LimitedProvider(WrapperProvider):
    """Provider that throttles the reads and writes of all its segments. The calling thread waits,
    except while the store stops. `config`: has the limits, which may change at any time."""

    def __init__(
        self,
        wrapped: SegmentProvider,
        config: StoreConfig,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(wrapped)
        metrics = metrics if metrics is not None else Metrics()
        self._is_stopping = threading.Event()
        self._writes = Limit(
            "write",
            lambda: config.upload_bytes_per_s,
            clock,
            metrics,
            self._is_stopping,
        )
        self._reads = Limit(
            "read",
            lambda: config.download_bytes_per_s,
            clock,
            metrics,
            self._is_stopping,
        )

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return LimitedSegment(segment, self._writes, self._reads)

    def begin_stop(self) -> None:
        """Stop throttling and start the backend's shutdown deadline. Idempotent."""
        self._is_stopping.set()
        bounded = find_layer(self.wrapped, BoundedStop)
        if bounded is not None:
            bounded.begin_stop()

    def close(self) -> None:
        self._is_stopping.set()
        self.wrapped.close()


class LimitedSegment(WrapperSegment):
    """Segment whose reads and writes are throttled."""

    def __init__(self, wrapped: FileSegment, writes: Limit, reads: Limit) -> None:
        super().__init__(wrapped)
        self._writes = writes
        self._reads = reads

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._writes.wait(_count_bytes(buffers))
        return self.wrapped.write(position, buffers)

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Write both segments together if the wrapped segment is a PairedSegment. Otherwise write
        only this segment."""
        if not isinstance(self.wrapped, PairedSegment):
            return self.write(position, buffers), None
        self._writes.wait(_count_bytes(buffers) + _count_bytes(companion.buffers))
        other = companion.segment
        if isinstance(other, LimitedSegment):
            other = other.wrapped
        inner = replace(companion, segment=other)
        return self.wrapped.write_with(position, buffers, inner)

    def read(self, position: int, length: int) -> memoryview:
        self._reads.wait(length)
        try:
            return self.wrapped.read(position, length)
        except TieredStoreError:
            self._reads.give_back(length)  # the length may exceed the segment
            raise

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return bytes that can be read immediately and within the limits. Returns None if the
        caller must use a blocking read."""
        found = self.wrapped.read_nowait(position, length)
        if found is None or not self._reads.passes_now(length):
            return None
        return found


def _count_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)
