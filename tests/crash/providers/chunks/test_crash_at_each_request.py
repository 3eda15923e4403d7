"""A process ends before or after one of its requests. The next process finds all promised data. The
scenario appends, merges, seals, collects garbage, and deletes and recreates a segment."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import (
    FaultyObjectClient,
    ObjectFault,
    request_points,
    run_until_crash_at,
)
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import Companion, FileSegmentType, SegmentId, Written
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.provider.samples import content

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
UNITS = SegmentId("broker-a/TopicA/0", FileSegmentType.CONSUME_QUEUE, 0)
LIMITS = ClientLimits(min_part_bytes=100)
GRACE_MS = 120_000


@dataclass
class Promises:
    """The acknowledged bytes, which the tier has promised to keep, and the unfinished operation."""

    written: dict[SegmentId, bytes] = field(default_factory=dict)
    tried: dict[SegmentId, bytes] = field(default_factory=dict)
    sealed: bool = False
    deleting: bool = False
    second_life: bool = False


def open_tier(client: MemoryObjectClient, clock: ManualClock) -> ChunkProvider:
    return chunk_provider(
        client,
        clock=clock,
        monotonic_ms=clock.now_ms,
        write_cache_bytes=0,
        policy=MergePolicy(fan_in=4, target_bytes=150, part_bytes=100, free_bytes=30, settle_ms=0),
    )


class Scenario:
    def __init__(self) -> None:
        self.promises = Promises()
        self.clock = ManualClock()

    def __call__(self, client: FaultyObjectClient) -> None:
        client._now_ms = self.clock.now_ms
        client.limits = LIMITS
        tier = open_tier(client, self.clock)
        epoch = tier.acquire_writer("broker-a")
        for turn in range(11):
            self.commit(tier, content(130 if 7 < turn < 10 else 40, turn), content(5, turn))
            if turn % 5 == 4:
                tier.run_maintenance()
                self.clock.advance(GRACE_MS)
        tier.open(LOG).seal()
        self.promises.sealed = True
        tier.run_maintenance()
        self.clock.advance(GRACE_MS)
        tier.run_maintenance()
        self.promises.deleting = True
        tier.open(UNITS).delete()
        self.promises.written[UNITS] = self.promises.tried[UNITS] = b""
        self.promises.deleting, self.promises.second_life = False, True
        self.append(tier, UNITS, content(9, 77))
        epoch.release()
        tier.close()

    def commit(self, tier: ChunkProvider, messages: bytes, units: bytes) -> None:
        self.append(tier, LOG, messages)
        self.append(tier, UNITS, units)

    def append(self, tier: ChunkProvider, id: SegmentId, data: bytes) -> None:
        before = self.promises.written.get(id, b"")
        self.promises.tried[id] = before + data
        segment = tier.open(id)
        assert segment.write(len(before), [data]) == Written(len(before) + len(data))
        self.promises.written[id] = before + data


class PairedScenario(Scenario):
    """Scenario in which a write stores messages together with their units."""

    def commit(self, tier: ChunkProvider, messages: bytes, units: bytes) -> None:
        promises = self.promises
        ends = {name: promises.written.get(name, b"") for name in (LOG, UNITS)}
        added = {LOG: messages, UNITS: units}
        for name, data in added.items():
            promises.tried[name] = ends[name] + data
        results = tier.open(LOG).write_with(
            len(ends[LOG]), [messages], Companion(tier.open(UNITS), len(ends[UNITS]), [units])
        )
        assert results == (
            Written(len(promises.tried[LOG])),
            Written(len(promises.tried[UNITS])),
        )
        promises.written |= promises.tried


SCENARIOS = {"two writes": Scenario, "one write": PairedScenario}
POINTS = {name: request_points(scenario()) for name, scenario in SCENARIOS.items()}


@pytest.mark.parametrize("kind", SCENARIOS)
def test_the_scenario_makes_every_kind_of_request(kind: str) -> None:
    operations = {name.partition(" ")[0] for _, name in POINTS[kind]}
    assert operations >= {
        *("PUT", "GET", "LIST", "DELETE", "CREATE_UPLOAD", "PUT_PART", "COPY_PART"),
        *("COMPLETE_UPLOAD", "LIST_UPLOADS"),
    }


EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the tested requests. The daily run tests every third request, the slow run all."""


def read_whole(tier: ChunkProvider, id: SegmentId) -> bytes:
    segment = tier.open(id)
    return bytes(segment.read(0, segment.size()))


def test_one_write_takes_fewer_requests() -> None:
    puts = {
        kind: sum(name.startswith("PUT ") for _, name in points) for kind, points in POINTS.items()
    }
    assert puts["two writes"] - puts["one write"] >= 9


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", SCENARIOS)
@pytest.mark.parametrize("fault", [ObjectFault.CRASH_BEFORE, ObjectFault.CRASH_AFTER])
def test_w04_nothing_acknowledged_is_missing_and_nothing_invented(
    fault: ObjectFault, kind: str, every: int
) -> None:
    for number, name in POINTS[kind][::every]:
        scenario, store = SCENARIOS[kind](), MemoryObjectClient()
        run_until_crash_at(scenario, store, number, fault)
        promises, clock = scenario.promises, scenario.clock
        survivor = MemoryObjectClient(beside=store, now_ms=clock.now_ms, limits=LIMITS)
        where = f"{fault.value} request {number}: {name}"
        tier = open_tier(survivor, clock)
        listed = {listing.id: listing for listing in tier.list()}
        check(tier, promises, where)
        # The next process continues where this one ended, and cleans up after it.
        tier.acquire_writer("broker-a", take_over=True)
        is_sealed = LOG in listed and listed[LOG].sealed
        assert is_sealed or not promises.sealed, where
        if not is_sealed:
            append_one(tier, LOG, promises)
        for _ in range(2):
            tier.run_maintenance()
            clock.advance(86_400_000)
        assert tier.run_maintenance().merged_count == 0, where
        check(tier, promises, where)
        assert survivor.open_uploads == [], where
        garbage = [found.token.garbage for found in tier.list()]  # type: ignore[attr-defined]
        assert not any(garbage), where
        for segment_id in (LOG, UNITS):
            tier.open(segment_id).delete()
            promises.written[segment_id] = promises.tried[segment_id] = b""
            check(tier, promises, where)
        assert set(names(survivor)) <= {"t"}, where  # tombstones, until the next epoch
        last = open_tier(survivor, clock)
        last.acquire_writer("broker-a", take_over=True)
        clock.advance(GRACE_MS)
        last.run_maintenance()
        assert names(survivor) == [], where


def names(store: MemoryObjectClient) -> list[str]:
    """Return the names of all objects of all segments, with their generations."""
    keys = [info.key for info in store.list("")]
    return [key.rpartition("/")[2] for key in keys if "/TopicA/" in key]


def append_one(tier: ChunkProvider, id: SegmentId, promises: Promises) -> None:
    segment = tier.open(id)
    size = segment.size()
    found = bytes(segment.read(0, size))
    assert segment.write(size, [b"more"]) == Written(size + 4)
    promises.written[id] = promises.tried[id] = found + b"more"


def check(tier: ChunkProvider, promises: Promises, where: str) -> None:
    for segment_id, acknowledged in promises.written.items():
        found = read_whole(tier, segment_id)
        if segment_id == UNITS and promises.deleting:
            assert promises.tried[segment_id].startswith(found), where
        elif len(found) > len(acknowledged):
            assert found == promises.tried[segment_id], where
        else:
            assert found == acknowledged, where
