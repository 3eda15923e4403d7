"""Wrappers around providers for several test folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FencedWrite,
    FileSegment,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.providers.memory.provider import MemoryProvider


class AppendOnlySegment(WrapperSegment):
    """Segment that rejects each write before its end, even of the same bytes. The result of a
    rejected write has the segment's value of `stale`."""

    stale = False

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        size = self.size()
        if position < size:
            return FencedWrite(size, "another", self.stale)
        return super().write(position, buffers)


class AppendOnlyProvider(WrapperProvider):
    """An in-memory tier whose segments can only grow, as in an object store."""

    def __init__(self, memory: MemoryProvider | None = None) -> None:
        self.memory = memory or MemoryProvider()
        super().__init__(self.memory)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, rewritable=False, conditional=True)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return AppendOnlySegment(segment)


class KeptProvider(WrapperProvider):
    """A provider that stays open when its users close it."""

    def close(self) -> None:
        """Do nothing, because the test continues to use the provider."""


class TwoWritesProvider(WrapperProvider):
    """A provider that cannot write two segments in one call, so that messages and units are written
    one after the other."""

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return WrapperSegment(segment)
