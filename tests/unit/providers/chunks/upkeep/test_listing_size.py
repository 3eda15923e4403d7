"""A listing of 10,000 queues needs at most 400 pages, including recent garbage
(`docs/formats/chunk-log.md`). Segment manifests are simulated without bytes. One test compares the
simulation with a real tier. The mean over time for one queue stands for the mean over all
queues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import Companion, FileSegmentType, SegmentId, Written
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.listing import make_carried_extent
from tieredstore.providers.chunks.manifests.names import (
    CarriedUnits,
    Generation,
    make_carried_name,
    make_carrier_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient

PAGE_KEYS = 1_000
QUEUE_COUNT = 10_000
MAX_PAGES = 400
MAX_FAST_PAGES = 750
RECORD_BYTES = 1_024
UNIT_BYTES = 20
LOG_SEGMENT_BYTES = 1 << 30
DAY_MS = 86_400_000
SETTINGS = ChunkSettings()
LOG_LIFE, UNITS_LIFE = Generation(1, 1), Generation(1, 2)


class SimulatedQueue:
    """A queue whose messages and units are written as one object. Merges run when they are due.
    Garbage is collected every `collect_ms`."""

    def __init__(self, collect_ms: int = 60_000) -> None:
        self.log = SegmentManifest()
        self.units = SegmentManifest()
        self.collect_ms = collect_ms

    def commit(self, messages: int, now_ms: int) -> int:
        """Write messages. Return the number of objects of the queue afterwards."""
        log_bytes, start, first = (
            messages * RECORD_BYTES,
            self.log.size_bytes,
            self.units.size_bytes,
        )
        place = CarriedUnits(0, UNITS_LIFE, first, first + messages * UNIT_BYTES)
        name = LOG_LIFE.name(make_carrier_name(start, start + log_bytes, place))
        self.log = self.log.append_extent(Extent(start, start + log_bytes, name, now_ms))
        carried = make_carried_extent(place, name, log_bytes, now_ms)
        self.units = self.units.append_extent(carried)
        self.units = merge(self.units, UNITS_LIFE, now_ms)
        self.log = merge(self.log, LOG_LIFE, now_ms)
        collected_ms = now_ms - now_ms % self.collect_ms
        self.units = self.units.drop_garbage(find_due(self.units, collected_ms))
        due = find_due(self.log, collected_ms)
        names = {make_carried_name(UNITS_LIFE, name) for name in due}
        while run := SETTINGS.policy.find_run_of(self.units.extents, names):
            self.units = replace_run(self.units, run, UNITS_LIFE, now_ms)
        self.log = self.log.drop_garbage(due)
        own = [extent for extent in self.units.extents if not extent.is_carried]
        return len([*self.log.extents, *self.log.garbage, *own, *self.units.garbage])


def merge(manifest: SegmentManifest, generation: Generation, now_ms: int) -> SegmentManifest:
    while (run := SETTINGS.policy.next_run(manifest.extents)) is not None:
        manifest = replace_run(manifest, run, generation, now_ms)
    return manifest


def replace_run(
    manifest: SegmentManifest, run: Sequence[Extent], generation: Generation, now_ms: int
) -> SegmentManifest:
    merged = manifest.with_merged(run[0].start, run[-1].end, now_ms, generation)
    assert merged is not None
    return merged


def find_due(manifest: SegmentManifest, now_ms: int) -> frozenset[str]:
    return frozenset(
        found.name for found in manifest.garbage if found.covered_ms + SETTINGS.grace_ms <= now_ms
    )


def mean_objects(interval_ms: int, messages: int, days: int) -> float:
    """Return the mean number of objects of one queue, in its last commit log and consume queue
    segments."""
    queue = SimulatedQueue()
    total = turns = 0
    for now_ms in range(0, days * DAY_MS, interval_ms):
        total += queue.commit(messages, now_ms)
        turns += 1
        if queue.log.size_bytes >= LOG_SEGMENT_BYTES:
            break
    return total / turns


@pytest.mark.parametrize(
    ("interval_ms", "messages", "days", "most"),
    [
        pytest.param(600_000, 120, 62, MAX_PAGES, id="1 KiB every 5 s, every 600 s"),
        pytest.param(600_000, 1, 62, MAX_PAGES, id="one message every 600 s"),
        # The same bound at shorter intervals takes long.
        pytest.param(
            120_000, 24, 20, MAX_PAGES, id="1 KiB every 5 s, every 120 s", marks=pytest.mark.slow
        ),
        pytest.param(
            30_000, 6, 10, MAX_PAGES, id="1 KiB every 5 s, every 30 s", marks=pytest.mark.slow
        ),
        pytest.param(30_000, 1, 10, MAX_PAGES, id="one message every 30 s", marks=pytest.mark.slow),
        pytest.param(30_000, 1_000, 10, MAX_PAGES, id="1 MiB every 30 s"),
        pytest.param(10_000, 8_190, 10, MAX_FAST_PAGES, id="almost 8 MiB every 10 s"),
    ],
)
def test_ten_thousand_queues_are_listed_in_few_pages(
    interval_ms: int, messages: int, days: int, most: int
) -> None:
    objects = mean_objects(interval_ms, messages, days)
    pages = objects * QUEUE_COUNT / PAGE_KEYS
    assert pages <= most


@pytest.mark.parametrize(("interval_ms", "messages"), [(600_000, 120), (30_000, 6)])
def test_a_real_tier_shows_as_many_objects_as_a_simulated_one(
    interval_ms: int, messages: int
) -> None:
    clock = ManualClock(0)
    client = MemoryObjectClient(now_ms=clock.now_ms)
    tier = chunk_provider(client, clock=clock, monotonic_ms=clock.now_ms)
    tier.acquire_writer("broker-a")
    log, units = (
        tier.open(SegmentId("broker-a/TopicA/0", kind, 0))
        for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
    )
    simulated = SimulatedQueue(collect_ms=1)
    data, added = bytes(messages * RECORD_BYTES), bytes(messages * UNIT_BYTES)
    for turn in range(200):
        assert log.write_with(
            turn * len(data), [data], Companion(units, turn * len(added), [added])
        ) == (Written((turn + 1) * len(data)), Written((turn + 1) * len(added)))
        tier.run_maintenance(sweep=False)
        expected = simulated.commit(messages, clock.now_ms())
        found = sum("/TopicA/" in info.key for info in client.list(""))
        assert abs(found - expected) <= 1, turn
        clock.advance(interval_ms)
