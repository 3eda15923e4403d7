"""A tier in files whose writes wait while a file `hang` is beside it, as those of a backend do that
never answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import Buffer, FileSegment, WriteResult
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.providers.posix.provider import PosixProvider


class HangingProvider(WrapperProvider):
    """A Posix provider that waits."""

    def __init__(self, wrapped: PosixProvider, sign: Path) -> None:
        super().__init__(wrapped)
        self._sign = sign

    @classmethod
    def from_config(cls, config: StoreConfig) -> HangingProvider:
        sign = Path(config.tier_file_path).with_name("hang")
        return cls(PosixProvider.from_config(config), sign)

    def wait(self) -> None:
        """Wait while the sign is there."""
        while self._sign.exists():
            time.sleep(0.05)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _HangingSegment(segment, self)


class _HangingSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: HangingProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._provider.wait()
        return super().write(position, buffers)
