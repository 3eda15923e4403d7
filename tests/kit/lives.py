"""Writers that own a tier one after another, each with its own clock and a record of the bytes it
wrote."""

from __future__ import annotations

from typing import Any

from tests.kit.late_requests import LateClient
from tests.kit.memory_chunks import chunk_provider
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    Written,
)
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient

BROKER = "broker-a"
QUEUE = f"{BROKER}/TopicA/0"
GRACE_MS = 120_000
SWITCH_MS = (1_000, 20_000, 59_000, 61_000, 1_200_000)
CLOCKS = ("server", "zombie", "successor")
WHICH = (("server", "successor"), ("successor",), CLOCKS)
"""Sets of clocks that advance while another writer takes over. The paused writer's clock may stop
with its machine, and the object store's servers may have different clocks."""
LIMITS = ClientLimits(min_part_bytes=100)
POLICY = MergePolicy(fan_in=4, target_bytes=1_000, part_bytes=100, free_bytes=30, settle_ms=0)


class Tier:
    """One object store and its clock."""

    def __init__(self, *, stamps_beginning: bool = False) -> None:
        self.server = ManualClock(10_000_000)
        self._settings: dict[str, Any] = {"now_ms": self.server.now_ms, "limits": LIMITS}
        self._stamps_beginning = stamps_beginning
        self._first = MemoryObjectClient(**self._settings)

    def client(self, ahead_ms: int = 0) -> LateClient:
        return LateClient(
            ahead_ms=ahead_ms,
            stamps_beginning=self._stamps_beginning,
            beside=self._first,
            **self._settings,
        )

    def writer(self, name: str, *, ahead_ms: int = 0, **settings: Any) -> Broker:
        return Broker(self.client(ahead_ms), name, **settings)

    def content(
        self, file: str = QUEUE, kind: FileSegmentType = FileSegmentType.COMMIT_LOG
    ) -> bytes:
        """Return the bytes that a reader without state gets."""
        return read_file(chunk_provider(self.client()), file, kind)


class Broker:
    """One process with its own clock. `told` maps files to the bytes that the process knows to be
    in the tier: those found at its start and those confirmed since. With `looks`, a fence check
    confirms bytes. Otherwise, the reply to a write does."""

    def __init__(
        self, client: LateClient, name: str, *, looks: bool = True, **settings: Any
    ) -> None:
        self.client = client
        self._looks = looks
        self.name = name
        self.clock = ManualClock()
        defaults: dict[str, Any] = {
            "clock": self.clock,
            "monotonic_ms": self.clock.now_ms,
            "grace_ms": GRACE_MS,
            "policy": POLICY,
        }
        self._settings = defaults | settings
        self.tier = self._make_tier()
        self.told: dict[str, bytes] = {}
        self._segments: dict[str, list[FileSegment]] = {}
        self._own: set[SegmentId] = set()

    def _make_tier(self) -> ChunkProvider:
        return chunk_provider(self.client, owner=self.name, **self._settings)

    def restart(self) -> Broker:
        """Continue like a new process that knows only the content of the tier."""
        self.tier = self._make_tier()
        return self.begin()

    def begin(self) -> Broker:
        """Acquire the writer epoch and continue from a listing of the tier."""
        self.epoch = self.tier.acquire_writer(BROKER, take_over=True)
        self._segments.clear()
        self._own.clear()
        self.told.clear()
        last = {}
        for found in _listings(self.tier):
            self._segments.setdefault(found.id.path, []).append(self.tier.open(found.id, found))
            last[found.id.path] = found
        for file, found in last.items():
            self.told[file] = read_file(self.tier, file)
            if found.sealed:
                self._roll(file, found.id.base_offset + found.size_bytes)
        self.epoch.confirm()
        return self

    def append(self, *pieces: bytes, file: str = QUEUE) -> Broker:
        """Append after the bytes in `told` and confirm them. Raises Fenced, Unavailable."""
        for piece in pieces:
            told = self.told.get(file, b"")
            self._write(file, len(told), piece)
            if self._looks:
                self.epoch.confirm()
            self.told[file] = told + piece
        return self

    def _write(self, file: str, position: int, piece: bytes) -> None:
        segments = self._segments.setdefault(file, [])
        if not segments:
            segments.append(self._open_new(file, position))
        for _ in range(2):
            last = segments[-1]
            result = last.write(position - last.id.base_offset, [piece])
            if isinstance(result, Written):
                self._own.add(last.id)
                return
            self.epoch.confirm()
            is_stale = isinstance(result, FencedWrite) and result.stale
            if not is_stale or last.id in self._own:
                break
            self._roll(file, position)  # it was found, and is another one's
        raise Unavailable(f"{self.name} is not let write at {position}: {result}")

    def seal(self, file: str = QUEUE) -> None:
        self._segments[file][-1].seal()

    def delete(self, file: str = QUEUE) -> Broker:
        """Delete a file. The next append creates a new one."""
        self.told.pop(file, None)
        for segment in self._segments.pop(file, [])[::-1]:
            segment.delete()
            self._own.discard(segment.id)
        return self

    def content(self, file: str = QUEUE) -> bytes:
        """Return the bytes that this writer reads."""
        content = b""
        for segment in self._segments.get(file, []):
            content = content[: segment.id.base_offset] + bytes(segment.read(0, segment.size()))
        return content

    def keep(self, *, sweep: bool = True) -> None:
        self.tier.run_maintenance(sweep=sweep)

    def collect(self, tier: Tier) -> None:
        """Merge small objects and delete garbage."""
        for _ in range(2):
            self.keep()
            for clock in (self.clock, tier.server):
                clock.advance(GRACE_MS)
        self.keep()

    def _roll(self, file: str, end: int) -> None:
        segments = self._segments[file]
        if segments[-1].id.base_offset == end:
            segments.pop().delete()  # nothing is in it
        segments.append(self._open_new(file, end))

    def _open_new(self, file: str, base_offset: int) -> FileSegment:
        name = SegmentId(file, FileSegmentType.COMMIT_LOG, base_offset)
        return self.tier.open(name, SegmentListing(name, 0))


def read_file(
    tier: ChunkProvider, file: str, kind: FileSegmentType = FileSegmentType.COMMIT_LOG
) -> bytes:
    """Return the content of a file. Where segments overlap, the later one wins."""
    found = [item for item in _listings(tier) if item.id.path == file and item.id.type is kind]
    content = b""
    for listing in found:
        position = listing.id.base_offset
        assert position <= len(content), f"{listing.id} begins behind {len(content)}"
        segment = tier.open(listing.id, listing)
        content = content[:position] + bytes(segment.read(0, listing.size_bytes))
    return content


def _listings(tier: ChunkProvider) -> list[SegmentListing]:
    return sorted(tier.list(BROKER), key=lambda found: (found.id.path, found.id.base_offset))
