"""Java's metrics of a provider: durations and sizes of its reads and writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tieredstore.contracts.segment import (
    Buffer,
    Companion,
    FileSegment,
    PairedSegment,
    SegmentProvider,
    WriteResult,
    Written,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.metrics import BYTES_BUCKETS, LATENCY_BUCKETS_MS, Metrics

RPC_LATENCY: Final = "rocketmq_tiered_store_provider_rpc_latency"
UPLOAD_BYTES: Final = "rocketmq_tiered_store_provider_upload_bytes"
DOWNLOAD_BYTES: Final = "rocketmq_tiered_store_provider_download_bytes"


class MeasuredProvider(WrapperProvider):
    """Counts the reads and writes of all segments that it opens, by queue and file type."""

    def __init__(self, wrapped: SegmentProvider, metrics: Metrics) -> None:
        super().__init__(wrapped)
        self._metrics = metrics

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return MeasuredSegment(segment, self._metrics)


class MeasuredSegment(WrapperSegment):
    """Segment whose successful reads and writes are counted in metrics, with their bytes."""

    def __init__(self, wrapped: FileSegment, metrics: Metrics) -> None:
        super().__init__(wrapped)
        self._metrics = metrics
        self._labels = {"path": wrapped.id.path, "file_type": wrapped.id.type.name.lower()}

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        begin = time.perf_counter()
        is_written = False
        try:
            result = self.wrapped.write(position, buffers)
            is_written = isinstance(result, Written)
            return result
        finally:
            self.note("write", begin, UPLOAD_BYTES, sum(map(_size, buffers)), is_written)

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Write both segments together if the wrapped segment is a PairedSegment, and count a write
        for each. Otherwise write only this segment."""
        if not isinstance(self.wrapped, PairedSegment):
            return self.write(position, buffers), None
        begin = time.perf_counter()
        other = companion.segment
        measured = other if isinstance(other, MeasuredSegment) else None
        inner = replace(companion, segment=measured.wrapped if measured is not None else other)
        results: tuple[WriteResult | None, WriteResult | None] = (None, None)
        try:
            first, second = results = self.wrapped.write_with(position, buffers, inner)
            return first, second
        finally:
            is_written = isinstance(results[0], Written)
            self.note("write", begin, UPLOAD_BYTES, sum(map(_size, buffers)), is_written)
            if measured is not None and results[1] is not None:
                size_bytes = sum(map(_size, companion.buffers))
                is_written = isinstance(results[1], Written)
                measured.note("write", begin, UPLOAD_BYTES, size_bytes, is_written)

    def read(self, position: int, length: int) -> memoryview:
        begin = time.perf_counter()
        is_read = False
        try:
            found = self.wrapped.read(position, length)
            is_read = True
            return found
        finally:
            self.note("read", begin, DOWNLOAD_BYTES, length, is_read)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        begin = time.perf_counter()
        found = self.wrapped.read_nowait(position, length)
        if found is not None:
            self.note("read", begin, DOWNLOAD_BYTES, length, is_success=True)
        return found

    def note(
        self, operation: str, begin: float, name: str, size_bytes: int, is_success: bool
    ) -> None:
        """Count one read or write that began at `begin` (seconds, `time.perf_counter`)."""
        elapsed_ms = (time.perf_counter() - begin) * 1000
        labels = {"operation": operation, **self._labels}
        self._metrics.observe(
            RPC_LATENCY, elapsed_ms, LATENCY_BUCKETS_MS, success=str(is_success).lower(), **labels
        )
        if is_success:
            self._metrics.observe(name, size_bytes, BYTES_BUCKETS, **labels)


def _size(buffer: Buffer) -> int:
    return memoryview(buffer).nbytes
