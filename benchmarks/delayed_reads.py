"""Provider with delayed reads that simulate a network."""

from __future__ import annotations

import time

from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment


class DelayedReads(WrapperProvider):
    """Provider whose reads are delayed by `latency_ms`. `read_nowait` always returns None.
    Concurrent reads are delayed at the same time. Other calls are not delayed."""

    def __init__(self, provider: SegmentProvider, latency_ms: float) -> None:
        super().__init__(provider)
        self.latency_ms = latency_ms

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _DelayedSegment(segment, self)


class _DelayedSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, provider: DelayedReads) -> None:
        super().__init__(segment)
        self._provider = provider

    def read(self, position: int, length: int) -> memoryview:
        time.sleep(self._provider.latency_ms / 1000)
        return super().read(position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        del position, length
        return None
