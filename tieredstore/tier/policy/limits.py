"""Limits of what a broker writes to its tier and reads from it: bytes and requests a second.

A request is a call of a segment. One of an object store may take a few requests, or parts, and its
upkeep (merging, garbage) comes besides; listings and deletions are not limited.
"""

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
from tieredstore.tier.policy.token_bucket import TokenBucket

LIMIT_WAITS: Final = "rocketmq_tiered_store_x_limit_wait_milliseconds_total"


class Limit:
    """Bytes and requests of one direction. Thread-safe."""

    def __init__(
        self,
        operation: str,
        bytes_per_s: Callable[[], int],
        requests_per_s: Callable[[], int],
        clock: Clock,
        metrics: Metrics,
        is_stopping: threading.Event,
    ) -> None:
        self._operation = operation
        self._metrics = metrics
        self._requests = TokenBucket(requests_per_s, clock, is_stopping)
        self._bytes = TokenBucket(bytes_per_s, clock, is_stopping)

    def wait(self, size_bytes: int) -> None:
        """Wait until a request of that size may begin."""
        waited_ms = self._requests.take(1) + self._bytes.take(size_bytes)
        if waited_ms:
            self._metrics.count(LIMIT_WAITS, waited_ms, operation=self._operation)

    def give_back(self, size_bytes: int) -> None:
        """Give back the bytes of a request that brought none."""
        self._bytes.give_back(size_bytes)

    def passes_now(self, size_bytes: int) -> bool:
        """Take a request of that size if it needs no wait; tells whether it did."""
        if not self._requests.take_now(1):
            return False
        if not self._bytes.take_now(size_bytes):
            self._requests.give_back(1)
            return False
        return True


class LimitedProvider(WrapperProvider):
    """Holds up the reads and writes of all segments that it opens, in the threads that call them:
    those that upload, and those in which reads wait for the backend. A stop does not wait.

    config: read each time, so limits may change at any time.
    """

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
            lambda: config.upload_requests_per_s,
            clock,
            metrics,
            self._is_stopping,
        )
        self._reads = Limit(
            "read",
            lambda: config.download_bytes_per_s,
            lambda: config.download_requests_per_s,
            clock,
            metrics,
            self._is_stopping,
        )

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return LimitedSegment(segment, self._writes, self._reads)

    def begin_stop(self) -> None:
        """Hold up nothing any more, and let the time of the backend's stop begin. Idempotent."""
        self._is_stopping.set()
        bounded = find_layer(self.wrapped, BoundedStop)
        if bounded is not None:
            bounded.begin_stop()

    def close(self) -> None:
        self._is_stopping.set()
        self.wrapped.close()


class LimitedSegment(WrapperSegment):
    """One segment."""

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
        """Write both where `wrapped` can; they count as one request. Else as `write`."""
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
            self._reads.give_back(length)  # it may be a length that no segment has
            raise

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return what is at hand where the limits let it through at once; else the caller waits
        for it where it may."""
        found = self.wrapped.read_nowait(position, length)
        if found is None or not self._reads.passes_now(length):
            return None
        return found


def _count_bytes(buffers: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)
