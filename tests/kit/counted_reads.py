"""A provider that counts the bytes and requests of reads."""

from __future__ import annotations

from collections import Counter

from tieredstore.contracts.segment import FileSegment, FileSegmentType, SegmentProvider
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment


class CountedReads(WrapperProvider):
    """A provider that counts reads. `reads` and `read_bytes` are counts by segment type."""

    def __init__(self, provider: SegmentProvider) -> None:
        super().__init__(provider)
        self.reads: Counter[FileSegmentType] = Counter()
        self.read_bytes: Counter[FileSegmentType] = Counter()

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _CountedSegment(segment, self)


class _CountedSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, counts: CountedReads) -> None:
        super().__init__(segment)
        self._counts = counts

    def read(self, position: int, length: int) -> memoryview:
        self._counts.reads[self.id.type] += 1
        self._counts.read_bytes[self.id.type] += length
        return super().read(position, length)
