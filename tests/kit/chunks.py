"""A small chunk log whose requests to the object store can be counted and made to fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.providers import naming
from tieredstore.providers.chunks.manifests.names import Generation, parse_object_name
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.segment import ChunkFileSegment
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
UNITS = SegmentId("broker-a/TopicA/0", FileSegmentType.CONSUME_QUEUE, 0)
GRACE_MS = 120_000


class Store:
    """One object store and its clock, shared by all processes of a test."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limits = ClientLimits(min_part_bytes=100)
        self.first = self.client()

    def client(self) -> FaultyObjectClient:
        beside = getattr(self, "first", None)
        return FaultyObjectClient(beside=beside, now_ms=self.clock.now_ms, limits=self.limits)

    def process(self, owner: str | None = None, **settings: Any) -> Process:
        return Process(self, owner, settings)

    def names(self, id: SegmentId = LOG) -> list[str]:
        """Return the object names of a segment, without their folder."""
        folder = f"/{id.path}/{id.type.name}/"
        return [info.key.rpartition("/")[2] for info in self.first.list("") if folder in info.key]

    def folder(self, id: SegmentId = LOG) -> str:
        """Return the folder of a segment."""
        cluster = naming.cluster_directory_name("DefaultCluster")
        return f"{cluster}/{naming.relative_segment_path(id)}"

    def generations(self, id: SegmentId = LOG) -> set[Generation]:
        """Return the generations of a segment that have objects."""
        start = f"{self.folder(id)}/"
        names = [info.key.removeprefix(start) for info in self.first.list(start)]
        return {
            found.generation for name in names if (found := parse_object_name(name)) is not None
        }


class Process:
    """One process that uses a store. Its client counts requests and can make them fail."""

    def __init__(self, store: Store, owner: str | None, settings: dict[str, Any]) -> None:
        self.store = store
        self.client = store.client()
        defaults: dict[str, Any] = {
            "clock": store.clock,
            "monotonic_ms": store.clock.now_ms,
            "grace_ms": GRACE_MS,
            "group_bytes": 0,
            "policy": MergePolicy(
                fan_in=4, target_bytes=160, part_bytes=100, free_bytes=10, settle_ms=0
            ),
        }
        self.tier: ChunkProvider = chunk_provider(self.client, owner=owner, **(defaults | settings))
        self.client.requests.clear()

    def open(self, id: SegmentId = LOG) -> ChunkFileSegment:
        return self.tier.open(id)

    def take_over(self) -> Process:
        self.tier.acquire_writer("broker-a", take_over=True)
        self.client.requests.clear()
        return self

    def append(self, *pieces: bytes, id: SegmentId = LOG) -> ChunkFileSegment:
        segment = self.open(id)
        position = segment.size()
        for piece in pieces:
            assert segment.write(position, [piece]) == Written(position + len(piece))
            position += len(piece)
        return segment

    def content(self, id: SegmentId = LOG) -> bytes:
        segment = self.open(id)
        return bytes(segment.read(0, segment.size()))

    def operations(self) -> list[str]:
        """Return the requests to the store since the last call."""
        found = [request.partition(" ")[0] for request in self.client.requests]
        self.client.requests.clear()
        return found

    def fail_next(self, *faults: ObjectFault | None) -> None:
        count = len(self.client.requests)
        self.client.plan = {
            count + number: fault for number, fault in enumerate(faults, 1) if fault is not None
        }

    def fail_all(self, fault: ObjectFault, operations: Iterable[str]) -> None:
        chosen = frozenset(operations)
        self.client.fault_of = lambda operation, _: fault if operation in chosen else None
