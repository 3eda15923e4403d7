"""Wrapped providers that more than one test folder needs."""

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
    """Refuses a write anywhere but at its end, even of the same bytes. stale: what it says of the
    other writer."""

    stale = False

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        size = self.size()
        if position < size:
            return FencedWrite(size, "another", self.stale)
        return super().write(position, buffers)


class AppendOnlyProvider(WrapperProvider):
    """A tier in memory whose segments only grow, as in an object store."""

    def __init__(self, memory: MemoryProvider | None = None) -> None:
        self.memory = memory or MemoryProvider()
        super().__init__(self.memory)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, rewritable=False, conditional=True)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return AppendOnlySegment(segment)


class KeptProvider(WrapperProvider):
    """A provider that outlives its users."""

    def close(self) -> None:
        """Not yet."""


class TwoWritesProvider(WrapperProvider):
    """A layer whose segments know of no companions, whatever is below it: messages and units are
    two writes."""

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return WrapperSegment(segment)
