"""A writer is paused at each of its requests while another writer takes over. The paused writer's
confirmed writes survive, however long the pause is, and whichever clocks continue during it. The
object store and each writer have a clock of their own. A write is acknowledged once `confirm` has
returned."""

from __future__ import annotations

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
from tieredstore.errors import Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.provider.samples import content

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
LIMITS = ClientLimits(min_part_bytes=100)
SWITCH_MS = [1_000, 20_000, 59_000, 61_000, 1_200_000]
WHEN = ["before", "after", "lost"]
CLOCKS = ("server", "zombie", "successor")
WHICH = [("server", "successor"), ("successor",), CLOCKS]
"""Sets of clocks that run while the first writer is paused and its successor takes over. The other
clocks stand still. For example, the paused writer's clock stops if its machine is paused."""
EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the requests at which another writer takes over. The slow run tests each length of the
pause at every request. The daily run tests each length only at every third request."""


class Writer:
    """One process with its own clock. `acknowledged` has the confirmed writes. If `looks` is False,
    the writer makes no fence checks, and `acknowledged` has all writes that got a reply."""

    def __init__(self, client: StoppedClient, name: str, *, looks: bool = True) -> None:
        self.looks = looks
        self.client = client
        self.clock = ManualClock()
        self.acknowledged: list[tuple[int, bytes]] = []
        self.tier: ChunkProvider = chunk_provider(
            client,
            owner=name,
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            write_cache_bytes=0,
            policy=MergePolicy(fan_in=3, target_bytes=150, part_bytes=100, free_bytes=30),
        )

    def acquire(self) -> None:
        self.epoch = self.tier.acquire_writer("broker-a", take_over=True)

    def append(self, position: int, data: bytes) -> bool:
        """Append bytes, and confirm them. Return whether both calls succeeded."""
        result = self.tier.open(LOG).write(position, [data])
        if isinstance(result, Written):
            if self.looks:
                self.epoch.confirm()
            self.acknowledged.append((position, data))
            return True
        assert isinstance(result, (FencedWrite, UnknownWrite))
        return False

    def extend(self, count: int, seed: int) -> None:
        """Append several pieces at the end, and confirm each of them."""
        position = self.tier.open(LOG).size()
        for turn in range(count):
            data = content(120 if turn % 5 == 4 else 40, seed + turn)
            if not self.append(position, data):
                return
            position += len(data)

    def live(self) -> None:
        try:
            self.acquire()
            self.extend(4, 1)
            self.tier.run_maintenance()
            self.extend(3, 50)
            self.epoch.confirm()
        except (Fenced, Unavailable):
            pass


def shared_settings(server: ManualClock) -> dict[str, Any]:
    return {"now_ms": server.now_ms, "limits": LIMITS}


def requests_of_an_undisturbed_writer() -> list[str]:
    client = StoppedClient(0, "before", **shared_settings(ManualClock()))
    Writer(client, "alone").live()
    return client.requests


REQUESTS = requests_of_an_undisturbed_writer()
FIRST = next(n for n, name in enumerate(REQUESTS, 1) if "/COMMIT_LOG/" in name)


def run_with_switch(
    number: int, when: str, switch_ms: int, which: tuple[str, ...], *, looks: bool = True
) -> tuple[Writer, Writer]:
    server = ManualClock(10_000_000)
    store = MemoryObjectClient(**shared_settings(server))
    stopped = StoppedClient(number, when, beside=store, **shared_settings(server))
    zombie = Writer(stopped, "zombie", looks=looks)
    free = StoppedClient(0, when, beside=store, **shared_settings(server))
    successor = Writer(free, "successor")
    clocks = {"server": server, "zombie": zombie.clock, "successor": successor.clock}

    def switch() -> None:
        """Let the successor continue the segment, merge, and collect garbage."""
        successor.acquire()
        successor.extend(9, 100)
        successor.tier.run_maintenance()
        for _ in range(2):
            for name in which:
                clocks[name].advance(switch_ms)
            successor.tier.run_maintenance()

    def switch_surely() -> None:
        try:
            switch()
        except TieredStoreError as error:
            raise AssertionError(f"the successor failed: {error}") from error

    stopped.meanwhile = switch_surely
    zombie.live()
    return zombie, successor


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("which", WHICH, ids="+".join)
@pytest.mark.parametrize("switch_ms", SWITCH_MS)
@pytest.mark.parametrize("when", WHEN)
def test_w07_what_was_confirmed_is_there_wherever_a_machine_stood_still(
    when: str, switch_ms: int, which: tuple[str, ...], every: int
) -> None:
    first = WHEN.index(when) + SWITCH_MS.index(switch_ms) + WHICH.index(which)
    for number in range(FIRST + first % every, len(REQUESTS) + 1, every):
        zombie, successor = run_with_switch(number, when, switch_ms, which)
        where = f"{when} {REQUESTS[number - 1]}"
        assert zombie.client.is_over, f"there is no request {number}"
        with pytest.raises(Fenced, match="successor"):
            zombie.epoch.confirm()
        successor.extend(2, 200)
        fresh = chunk_provider(MemoryObjectClient(beside=zombie.client, limits=LIMITS)).open(LOG)
        for writer in (zombie, successor):
            for position, data in writer.acknowledged:
                assert bytes(fresh.read(position, len(data))) == data, (where, position)


def test_w07_with_the_reply_alone_the_same_machine_would_lose_what_it_acknowledged() -> None:
    """Without the fence check, a writer loses acknowledged data even if all writers run on one
    machine. So the preceding test would notice a missing check."""
    lost = 0
    for number in range(FIRST, len(REQUESTS)):
        zombie, _ = run_with_switch(number, "before", SWITCH_MS[-1], WHICH[0], looks=False)
        fresh = chunk_provider(MemoryObjectClient(beside=zombie.client, limits=LIMITS)).open(LOG)
        for position, data in zombie.acknowledged:
            lost += bytes(fresh.read(position, len(data))) != data
    assert lost > 0
