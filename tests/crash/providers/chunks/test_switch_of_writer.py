"""A writer is stopped at each of its requests, another writer takes over, and the first one
continues. The stopped writer is then a zombie: it believes that it owns the broker prefix. It must
not change any byte that the new writer acknowledged, and it must not acknowledge a write that is
not stored. The store and each writer have a clock. During a switch all clocks continue, except that
of a zombie whose machine is paused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.stopped_client import StoppedClient
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegmentType,
    SegmentId,
    UnknownWrite,
    Written,
)
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.provider.samples import content

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
OTHER = SegmentId("broker-a/TopicB/0", FileSegmentType.COMMIT_LOG, 0)
LIMITS = ClientLimits(min_part_bytes=100)
GRACE_MS = 120_000
WHEN = ["before", "after", "lost"]
SWITCHES = [
    *((switch_ms, True) for switch_ms in (1_000, 20_000, 59_000, 61_000, 1_200_000)),
    (20_000, False),
    (1_200_000, False),
]
"""Kinds of switches to another writer: the length of the first writer's pause in ms, and whether
its clock stops during the pause."""

EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the requests at which another writer takes over. The slow run tests every request with
each kind of switch. The daily run tests each kind with a part of the requests."""


@dataclass
class Writer:
    """One broker process with its own clock. `acknowledged` holds its confirmed writes. `others`:
    further clocks that continue during a switch, besides the writer's and the store's."""

    client: MemoryObjectClient
    server: ManualClock
    name: str
    clock: ManualClock = field(default_factory=ManualClock)
    others: list[ManualClock] = field(default_factory=list)
    acknowledged: dict[SegmentId, list[tuple[int, bytes]]] = field(default_factory=dict)
    is_fenced: bool = False
    is_unsure: bool = False

    def __post_init__(self) -> None:
        self.tier: ChunkProvider = chunk_provider(
            self.client,
            owner=self.name,
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            write_cache_bytes=0,
            policy=MergePolicy(
                fan_in=3, target_bytes=150, part_bytes=100, free_bytes=30, settle_ms=0
            ),
        )

    def append(self, id: SegmentId, position: int, data: bytes) -> bool:
        """Append bytes. Return whether they were written. The writer of the highest epoch must
        never be fenced."""
        result = self.tier.open(id).write(position, [data])
        if isinstance(result, Written):
            self.epoch.confirm()
            self.acknowledged.setdefault(id, []).append((position, data))
            return True
        assert isinstance(result, (FencedWrite, UnknownWrite))
        if isinstance(result, FencedWrite) and not result.stale:
            raise Fenced(f"{self.name}: {result.writer}")
        return False

    def live(self) -> None:
        """Append, merge, collect garbage, seal and delete until the writer is stopped."""
        try:
            self.epoch = self.tier.acquire_writer("broker-a")
            self.append(OTHER, 0, content(70, 9))
            position = 0
            for turn in range(7):
                data = content(40 if turn < 5 else 120, turn)
                if not self.append(LOG, position, data):
                    return
                position += len(data)
                if turn % 3 == 2:
                    self.tier.run_maintenance()
                    self.wait(GRACE_MS)
            self.acknowledged.pop(OTHER, None)
            self.tier.open(OTHER).delete()
            self.tier.open(LOG).seal()
            self.tier.run_maintenance()
            self.wait(GRACE_MS)
            self.tier.run_maintenance()
            self.epoch.release()
        except Fenced:
            self.is_fenced = True
        except Unavailable:
            self.is_unsure = True

    def wait(self, time_ms: int) -> None:
        for clock in (self.clock, self.server):
            clock.advance(time_ms)

    def take_over(self, switch_ms: int) -> None:
        for clock in (self.clock, self.server, *self.others):
            clock.advance(switch_ms)
        self.epoch = self.tier.acquire_writer("broker-a", take_over=True)

    def extend(self, id: SegmentId, seed: int) -> None:
        """Append at the end of a segment, merge its objects and delete garbage. Afterwards a writer
        could use the names of the deleted objects again."""
        position = self.tier.open(id).size()
        for turn in range(7):
            data = content(30, seed + turn)
            if not self.append(id, position, data):
                return
            position += len(data)
        for _ in range(2):
            self.tier.run_maintenance()
            self.wait(GRACE_MS)


def reader(store: MemoryObjectClient) -> ChunkProvider:
    return chunk_provider(MemoryObjectClient(beside=store, limits=LIMITS))


def assert_holds(
    tier: ChunkProvider, acknowledged: dict[SegmentId, list[tuple[int, bytes]]], where: str
) -> None:
    for segment_id, pieces in acknowledged.items():
        segment = tier.open(segment_id)
        for position, data in pieces:
            assert bytes(segment.read(position, len(data))) == data, (where, position)


def run_with_switch(
    number: int, when: str, change: Callable[[Writer], None], *, stands: bool
) -> tuple[Writer, Writer, str]:
    """Return the paused writer, its successor, and the request at which the switch happened."""
    server = ManualClock()
    store = MemoryObjectClient()
    shared: dict[str, Any] = {"beside": store, "now_ms": server.now_ms, "limits": LIMITS}
    stopped = StoppedClient(number, when, **shared)
    zombie = Writer(stopped, server, "zombie")
    successor = Writer(MemoryObjectClient(**shared), server, "successor")
    successor.others = [] if stands else [zombie.clock]
    stopped.meanwhile = lambda: change(successor)
    zombie.live()
    assert stopped.is_over, f"there is no request {number}"
    return zombie, successor, f"{when} request {number}: {stopped.requests[number - 1]}"


def requests_of_an_undisturbed_writer() -> list[str]:
    server = ManualClock()
    client = StoppedClient(0, "before", now_ms=server.now_ms, limits=LIMITS)
    Writer(client, server, "alone").live()
    return client.requests


REQUESTS = requests_of_an_undisturbed_writer()
FIRST = next(n for n, name in enumerate(REQUESTS, 1) if name.startswith("PUT")) + 2
"""Number of the first request after the writer acquired the epoch."""


def numbers(end: int, every: int, when: str, switch_ms: int, stands: bool) -> range:
    """Return the numbers of the requests, below `end`, at which another writer takes over. Only
    every `every`-th request is tested. The first one depends on the kind of switch, so that all
    kinds together cover all requests."""
    first = WHEN.index(when) + SWITCHES.index((switch_ms, stands))
    return range(FIRST + first % every, end, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize(("switch_ms", "stands"), SWITCHES)
@pytest.mark.parametrize("when", WHEN)
def test_w02_a_switch_at_each_request_leaves_no_hole_and_no_second_copy(
    when: str, switch_ms: int, every: int, *, stands: bool
) -> None:
    def change(successor: Writer) -> None:
        successor.take_over(switch_ms)
        successor.extend(LOG, 100)

    for number in numbers(len(REQUESTS) + 1, every, when, switch_ms, stands):
        zombie, successor, where = run_with_switch(number, when, change, stands=stands)
        tier = reader(zombie.client)
        for listing in tier.list():
            assert isinstance(listing.token, SegmentManifest)
            assert not listing.token.holes, where
        assert_holds(tier, successor.acknowledged, where)
        assert_holds(tier, zombie.acknowledged, where)
        successor.extend(LOG, 200)
        successor.extend(OTHER, 300)
        assert_holds(reader(zombie.client), successor.acknowledged, where)
        assert_holds(reader(zombie.client), zombie.acknowledged, where)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize(("switch_ms", "stands"), SWITCHES)
@pytest.mark.parametrize("when", WHEN)
def test_w01_a_zombie_is_told_to_stop(
    when: str, switch_ms: int, every: int, *, stands: bool
) -> None:
    """The paused writer stops at its next fence check, and every write includes a fence check.
    Until then it changes only its own folders."""

    def change(successor: Writer) -> None:
        successor.take_over(switch_ms)

    for number in numbers(len(REQUESTS), every, when, switch_ms, stands):
        zombie, _, where = run_with_switch(number, when, change, stands=stands)
        requests = zombie.client.requests[number:]  # type: ignore[attr-defined]
        changing = [name for name in requests if name.startswith(("PUT ", "COMPLETE", "DELETE"))]
        changing = [n for n in changing if "/.writer/" not in n and not n.endswith(".left")]
        assert zombie.is_fenced or zombie.is_unsure or not changing[1:], where
        # Except for the one in flight
        assert not [name for name in changing[1:] if name.startswith("DELETE")], where
        own = (".inherited/00000000000000000001", "/e0000000001.")
        assert all(any(part in name for part in own) for name in changing), (where, changing)
        assert sum("/c." in name for name in changing) <= 2, (where, changing)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize(("switch_ms", "stands"), SWITCHES)
@pytest.mark.parametrize("when", WHEN)
def test_w03_a_topic_that_was_made_again_keeps_what_it_was_told(
    when: str, switch_ms: int, every: int, *, stands: bool
) -> None:
    def change(successor: Writer) -> None:
        successor.take_over(switch_ms)
        for segment_id in (LOG, OTHER):
            successor.tier.open(segment_id).delete()
        for turn in range(2):
            for segment_id in (LOG, OTHER):
                successor.append(segment_id, 25 * turn, content(25, 50 + turn))

    for number in numbers(len(REQUESTS) + 1, every, when, switch_ms, stands):
        zombie, successor, where = run_with_switch(number, when, change, stands=stands)
        tier = reader(zombie.client)
        assert_holds(tier, successor.acknowledged, where)
        successor.extend(LOG, 200)
        tier = reader(zombie.client)
        assert_holds(tier, successor.acknowledged, where)
        for listing in tier.list():
            assert isinstance(listing.token, SegmentManifest)
            assert not listing.token.holes, where
