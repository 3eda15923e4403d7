"""A process that writes group objects ends before or after one of its requests. The next process
finds all promised data, and continues. The scenario writes commits of three queues into group
objects, sorts the groups, moves their bytes to the queues' folders, and deletes and recreates a
queue."""

from __future__ import annotations

import pytest

from tests.kit.gathered import BROKER, queue_ids
from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import (
    FaultyObjectClient,
    ObjectFault,
    request_points,
    run_until_crash_at,
)
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import Companion, SegmentId, Written
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.provider.samples import content

TOPICS = ("A", "B", "C")
REGROUP_MS = 60_000
AGE_MS = 3 * REGROUP_MS
IDS = [id for topic in TOPICS for id in queue_ids(topic)]  # noqa: A001


def open_tier(client: MemoryObjectClient, clock: ManualClock) -> ChunkProvider:
    return chunk_provider(
        client,
        clock=clock,
        monotonic_ms=clock.now_ms,
        grace_ms=0,
        write_cache_bytes=0,
        group_bytes=1_000,
        regroup_interval_ms=REGROUP_MS,
        regrouped_bytes=100,
        split_age_ms=AGE_MS,
        policy=MergePolicy(fan_in=4, target_bytes=150, part_bytes=100, free_bytes=30, settle_ms=0),
    )


class Scenario:
    """One writer, and the state of its bytes. `sure`: confirmed bytes. `tried`: bytes that may be
    partly written. `deleting`: queue whose deletion has begun."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sure: dict[SegmentId, bytes] = dict.fromkeys(IDS, b"")
        self.tried = dict(self.sure)
        self.deleting = ""

    def __call__(self, client: FaultyObjectClient) -> None:
        client._now_ms = self.clock.now_ms
        tier = open_tier(client, self.clock)
        epoch = tier.acquire_writer(BROKER)
        for turn in range(5):
            for topic in TOPICS:
                self.take(tier, topic, content(20, turn), content(3, turn))
            epoch.confirm()
            self.sure = dict(self.tried)
            self.clock.advance(REGROUP_MS)
            tier.run_maintenance(sweep=turn == 3)
        self.deleting = "A"
        for name in queue_ids("A")[::-1]:
            self.sure[name] = b""
            tier.open(name).delete()
            self.tried[name] = b""
        self.deleting = ""
        self.take(tier, "A", content(9, 77), content(2, 77))
        epoch.confirm()
        self.sure = dict(self.tried)
        epoch.release()
        tier.close()

    def take(self, tier: ChunkProvider, topic: str, text: bytes, units: bytes) -> None:
        log, queue = queue_ids(topic)
        ends = [len(self.tried[log]), len(self.tried[queue])]
        self.tried[log] += text
        self.tried[queue] += units
        place = Companion(tier.open(queue), ends[1], [units], may_wait=True)
        results = tier.open(log).write_with(ends[0], [text], place)
        assert results == (Written(ends[0] + len(text)), Written(ends[1] + len(units)))


POINTS = request_points(Scenario())
EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the tested requests. The daily run tests every third request, the slow run all."""


def read_all(tier: ChunkProvider) -> dict[SegmentId, bytes]:
    listed = {listing.id: listing for listing in tier.list(BROKER)}
    found = {}
    for name in IDS:
        segment = tier.open(name, listed.get(name))
        found[name] = bytes(segment.read(0, segment.size()))
    return found


def test_the_scenario_makes_and_deletes_groups_of_both_levels() -> None:
    made = [name for _, name in POINTS if name.startswith("PUT ") and "/.groups/" in name]
    assert {name.split("/.groups/")[1][0] for name in made} == {"0", "1"}
    deleted = [name for _, name in POINTS if name.startswith("DELETE ") and "/.groups/" in name]
    assert deleted
    assert any("/m." in name for _, name in POINTS if name.startswith("PUT "))


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("fault", [ObjectFault.CRASH_BEFORE, ObjectFault.CRASH_AFTER])
def test_w04_nothing_acknowledged_in_groups_is_missing_and_nothing_invented(
    fault: ObjectFault, every: int
) -> None:
    for number, name in POINTS[::every]:
        scenario, store = Scenario(), MemoryObjectClient()
        run_until_crash_at(scenario, store, number, fault)
        where = f"{fault.value} request {number}: {name}"
        clock = scenario.clock
        survivor = MemoryObjectClient(beside=store, now_ms=clock.now_ms)
        found = read_all(open_tier(survivor, clock))
        for id, sure in scenario.sure.items():  # noqa: A001
            if id.path.split("/")[1] != scenario.deleting:
                assert found[id].startswith(sure), where
            assert scenario.tried[id].startswith(found[id]), where
        # The next process continues where this one ended, and cleans up after it.
        tier = open_tier(survivor, clock)
        epoch = tier.acquire_writer(BROKER, take_over=True)
        assert read_all(tier) == found, where
        scenario.tried = dict(found)
        for topic in TOPICS:
            scenario.take(tier, topic, b"more", b"u")
        epoch.confirm()
        for _ in range(4):
            clock.advance(AGE_MS)
            tier.run_maintenance()
            assert read_all(open_tier(survivor, clock)) == scenario.tried, where
        left = [info.key for info in survivor.list("") if "/.groups/" in info.key]
        assert left == [], where
