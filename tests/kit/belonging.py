"""Several stores in separate folders that share one in-memory tier."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, ClassVar

from tests.kit.local_stores import START_MS
from tests.kit.tier.flat import TableMetadata
from tests.kit.tiered_local import TieredLocal
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.errors import Unavailable
from tieredstore.message.encoding import Message
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.writing import TierWriter


class StillClock(ManualClock):
    """Clock on which waits of background threads never end, so that their loops never run."""

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if threading.current_thread() is threading.main_thread():
            return super().wait(event, timeout_ms)
        if threading.current_thread().name.startswith(
            ("tiered-recovery", "tiered-fetch", "tiered-upload")
        ):
            return super().wait(event, timeout_ms)
        return event.wait()


class SharedTier:
    """Object storage of a tier, shared by several processes. `is_away` makes the tier unreachable.
    `take_over_epoch` is the value of `tieredStoreChunkTakeOverEpoch`."""

    current: ClassVar[SharedTier]

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = StillClock(START_MS)
        self.objects = MemoryObjectClient(now_ms=self.clock.now_ms)
        self.is_away = False
        self.take_over_epoch = 0
        self.clients: list[SharedClient] = []
        SharedTier.current = self

    def replace(self) -> None:
        """Replace the bucket by an empty one."""
        self.objects = MemoryObjectClient(now_ms=self.clock.now_ms)

    def copy_objects(self) -> MemoryObjectClient:
        """Return a copy of the bucket."""
        copied = MemoryObjectClient(now_ms=self.clock.now_ms)
        with self.objects._store.lock:
            copied._store.objects.update(self.objects._store.objects)
            copied._store.keys.extend(self.objects._store.keys)
        return copied

    def put_objects(self, copied: MemoryObjectClient) -> None:
        """Replace the bucket by a copy from `copy_objects`."""
        self.objects = copied

    def provider(self) -> ChunkProvider:
        client = SharedClient(self)
        self.clients.append(client)
        settings = ChunkSettings(
            maintenance_threads=0,
            pause_ms=0,
            clock=self.clock,
            take_over_epoch=self.take_over_epoch,
        )
        return ChunkProvider(client, settings=settings)

    def count_requests(self) -> int:
        return sum(client.requests for client in self.clients)

    def open(self, folder: Path, **keys: object) -> Stopped:
        return Stopped(
            folder,
            self.clock,
            tieredBackendServiceProvider=f"{__name__}:SharedProvider",
            **keys,
        )

    def run_job(self, state: Path, *, take_over: bool) -> TierWriter:
        return TierWriter.acquire(
            self.provider(), TableMetadata(), "broker-a", state, take_over=take_over
        )


class SharedClient(MemoryObjectClient):
    """Client of the shared tier in one process."""

    def __init__(self, tier: SharedTier) -> None:
        super().__init__(beside=tier.objects, now_ms=tier.clock.now_ms)
        self._tier = tier
        self.requests = 0

    def request(self, operation: str, key: str) -> None:
        self.requests += 1
        if self._tier.is_away:
            raise Unavailable(f"injected: no answer to {operation} {key}")
        super().request(operation, key)


class SharedProvider(ChunkProvider):
    """Provider class that a configuration can name. It opens the most recently created
    `SharedTier`."""

    @classmethod
    def from_config(cls, config: StoreConfig) -> ChunkProvider:
        del config
        return SharedTier.current.provider()


class Stopped(TieredLocal):
    """A store whose background loops do not run."""

    @property
    def watch(self) -> Any:
        return self.store._watch

    @property
    def epoch_number(self) -> int:
        writer = self.store.flat_files._writer
        assert writer is not None
        return writer.epoch_number

    def put_one(self, topic: str, body: bytes) -> PutMessageResult:
        self.clock.advance(10)
        result = self.store.put_message(Message.create(topic, body, keys=["all"]))
        self.local.wait_until_dispatched()
        return result

    def try_watch(self) -> None:
        with contextlib.suppress(Unavailable):
            self.watch.run_once()
