"""A Posix tier that can hang. Writes wait while a file `hang` exists next to the tier, and
acquiring the writer epoch waits while `hang-start` exists."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import Buffer, FileSegment, WriterEpoch, WriteResult
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.providers.posix.provider import PosixProvider


class HangingProvider(WrapperProvider):
    """A Posix provider that hangs while a file exists next to the tier."""

    def __init__(self, wrapped: PosixProvider, folder: Path) -> None:
        super().__init__(wrapped)
        self._folder = folder

    @classmethod
    def from_config(cls, config: StoreConfig) -> HangingProvider:
        return cls(PosixProvider.from_config(config), Path(config.tier_file_path).parent)

    def wait(self, sign: str = "hang") -> None:
        """Wait while the file `sign` exists. The file `<sign>.seen` shows that a thread is
        waiting."""
        while (self._folder / sign).exists():
            (self._folder / f"{sign}.seen").touch()
            time.sleep(0.05)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        self.wait("hang-start")
        return super().acquire_writer(broker_name, take_over=take_over, record=record)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _HangingSegment(segment, self)


class _HangingSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: HangingProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._provider.wait()
        return super().write(position, buffers)
