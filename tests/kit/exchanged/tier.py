"""A tier of objects, and clients for processes that can be killed."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.kit.belonging import SharedClient, SharedTier, StillClock
from tests.kit.local_stores import START_MS
from tieredstore.clock import ManualClock
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient


class LocalRoundsClock(StillClock):
    """A clock that stops the tier's background loops, but not those of the local store."""

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if timeout_ms <= 0:
            return event.is_set()
        name = threading.current_thread().name
        if name.startswith("tiered-") or threading.current_thread() is threading.main_thread():
            return super().wait(event, timeout_ms)
        return ManualClock.wait(self, event, timeout_ms)


class KilledClient(SharedClient):
    """Client of a process that can be killed. Once `is_killed` is set, its requests have no
    effect."""

    is_killed = False

    def request(self, operation: str, key: str) -> None:
        if self.is_killed:
            raise Unavailable(f"injected: the process of {operation} {key} was killed")
        super().request(operation, key)


class KillableTier(SharedTier):
    """Object store whose content can be copied and restored. Its clients can be killed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.clock = LocalRoundsClock(START_MS)
        self.objects = MemoryObjectClient(now_ms=self.clock.now_ms)
        self._killable: list[KilledClient] = []

    def provider(self) -> ChunkProvider:
        client = KilledClient(self)
        self.clients.append(client)
        self._killable.append(client)
        settings = ChunkSettings(
            maintenance_threads=0,
            pause_ms=0,
            clock=self.clock,
            take_over_epoch=self.take_over_epoch,
        )
        return ChunkProvider(client, settings=settings)

    def kill_clients(self) -> None:
        for client in self._killable:
            client.is_killed = True
        self._killable.clear()
