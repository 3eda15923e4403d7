"""An in-memory object store that fails in every way, and a dispatcher that uploads to it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    BROKER,
    T0,
    ListIndex,
    ListSource,
    TableMetadata,
    bodies,
    config,
    record,
)
from tests.kit.tier.wrappers import TwoWritesProvider
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.message.crc import CRC_MASK, crc32
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import plan
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.verify.verification import verify
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchOutcome

KEY = QueueKey("TopicA", 0)
SIZE = len(record(0)[0])


class Fate(enum.Enum):
    """Fate of a request. LATE: the reply is lost, and the request takes effect some requests later.
    ZOMBIE_…: a fenced writer creates an object with the same key first. Its content is the same
    bytes, only the first message, or different bytes."""

    WELL = "well"
    BUSY = "busy"
    DOWN = "down"
    LOST = "reply lost"
    LATE = "applied late"
    ZOMBIE_SAME = "zombie with our bytes"
    ZOMBIE_PART = "zombie with the first message"
    ZOMBIE_OTHER = "zombie with other bytes"
    CRASH_BEFORE = "the process ends before it"
    CRASH_AFTER = "the process ends after it"


_ZOMBIES = {Fate.ZOMBIE_SAME, Fate.ZOMBIE_PART, Fate.ZOMBIE_OTHER}
_LATE_BY = 3


class HostileClient(MemoryObjectClient):
    """Client that takes the fate of each request from a list. After the end of the list, all
    requests succeed."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(now_ms=clock.now_ms)
        self.fates: list[Fate] = []
        self.flying: list[tuple[int, str, bytes, Mapping[str, str]]] = []
        self.count = 0
        self.is_calm = False

    def _fate(self) -> Fate:
        self.count += 1
        self.land(self.count)
        if self.is_calm or not self.fates:
            return Fate.WELL
        return self.fates.pop(0)

    def land(self, until: int) -> None:
        """Apply the delayed requests that are due."""
        due = [item for item in self.flying if item[0] <= until]
        self.flying = [item for item in self.flying if item[0] > until]
        for _, key, content, metadata in due:
            super().put_if_absent(key, [content], metadata)

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        fate, content = self._fate(), b"".join(buffers)
        is_data = "/.writer/" not in key and ("/c." in key or "/u." in key) and content
        if fate is Fate.BUSY:
            raise Busy(f"{key}: busy")
        if fate is Fate.DOWN:
            raise Unavailable(f"{key}: no connection")
        if fate is Fate.LATE and is_data:
            self.flying.append((self.count + _LATE_BY, key, content, metadata))
            raise Unavailable(f"{key}: time-out")
        if fate in _ZOMBIES and is_data:
            theirs = {
                Fate.ZOMBIE_SAME: content,
                Fate.ZOMBIE_PART: content[: SIZE if "COMMIT_LOG" in key else 20],
                Fate.ZOMBIE_OTHER: b"z" * (len(content) if "/u." in key else 40),
            }[fate]
            super().put_if_absent(
                key, [theirs], {"w": "0:zombie", "crc": f"{crc32(theirs) & CRC_MASK:08x}"}
            )
        if fate is Fate.CRASH_BEFORE:
            raise SimulatedCrash
        made = super().put_if_absent(key, [content], metadata)
        if fate is Fate.CRASH_AFTER:
            raise SimulatedCrash
        if fate is Fate.LOST:
            raise Unavailable(f"{key}: no reply")
        return made

    def request(self, operation: str, key: str) -> None:
        if operation in {"PUT", "CREATE_UPLOAD", "PUT_PART", "COPY_PART", "COMPLETE_UPLOAD"}:
            return
        fate = self._fate()
        if fate in {Fate.BUSY, Fate.DOWN}:
            raise Unavailable(f"{key}: {operation} failed")


class World:
    """The state that survives a process, and the current process. With `is_paired`, one request
    writes messages and units."""

    def __init__(self, *, is_paired: bool = True) -> None:
        self.is_paired = is_paired
        self.clock = ManualClock(T0)
        self.client = HostileClient(self.clock)
        self.metadata = TableMetadata()
        self.source = ListSource()
        self.index = ListIndex()
        self.settings = config(
            commit_log_max_size_bytes=7 * SIZE,
            consume_queue_max_size_bytes=100,
            group_commit_count=4,
            group_commit_size_bytes=2 * SIZE + 1,
            dispatch_threads=1,
        )
        self.count = 0
        self.dispatcher: MessageStoreDispatcher | None = None

    def provider(self) -> ChunkProvider:
        return chunk_provider(
            self.client,
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            max_tries=2,
            preferred_batch_bytes=3 * SIZE,
            group_bytes=0,
        )

    def start(self) -> None:
        """Start a new process. The previous one may have ended at any point."""
        self.dispatcher = None
        self.chunks = self.provider()
        provider = self.chunks if self.is_paired else TwoWritesProvider(self.chunks)
        self.store = FlatFileStore(self.settings, provider, self.metadata, self.clock)
        become_writer(self.store, take_over=True)
        self.store.load()
        self.dispatcher = MessageStoreDispatcher(
            self.settings,
            self.source,
            self.store,
            self.index,
            TopicFilter(self.settings),
            self.clock,
        )

    def put(self, count: int) -> None:
        self.source.put(KEY, self.count, count)
        self.count += count

    def act(self, action: str) -> None:
        self.clock.advance(7_000)
        if action == "restart" or self.dispatcher is None:
            self.start()
        elif action == "maintain":
            self.chunks.run_maintenance(sweep=False)
        elif action == "wait":
            self.clock.advance(600_000)
        else:
            self.put(int(action))
        for outcome in self.scan():
            assert not isinstance(outcome.error, Fenced), outcome
        self.check_prefix()

    def scan(self) -> list[DispatchOutcome]:
        return self.dispatcher.scan(force=True) if self.dispatcher is not None else []

    def try_scan(self) -> None:
        """Run a dispatcher scan and ignore its errors. If it ends the process, start a new one."""
        try:
            self.scan()
        except SimulatedCrash:
            self.start()
        except TieredStoreError:
            pass

    def check_prefix(self) -> None:
        """Check that the confirmed messages are a prefix of the sent ones."""
        calm, self.client.is_calm = self.client.is_calm, True
        file = self.store.get(*KEY) if self.dispatcher is not None else None
        if file is not None and file.is_initialised:
            found = bodies(file)
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert all(body == body_of(offset) for offset, body in found)
        self.client.is_calm = calm


def body_of(offset: int) -> bytes:
    return f"TopicA-0-{offset}-".encode().ljust(20, b"x")


def list_bodies(world: World) -> list[tuple[int, bytes]]:
    """Return the bodies of the tier's messages, read without the metadata. Fails if the tier is
    damaged."""
    provider: Any = world.provider()
    catalogue = load_catalogue(provider)
    damage: list[Finding] = []
    report = verify(provider, catalogue, damage.append)
    assert report.damage == 0, damage
    assert report.messages == world.count
    found = []
    for one in plan(provider, catalogue.select("TopicA", 0, BROKER)):
        for batch in read_batches(provider, one):
            messages = [batch.message(row) for row in range(len(batch))]
            found += [(message.queue_offset, bytes(message.body)) for message in messages]
    return found
