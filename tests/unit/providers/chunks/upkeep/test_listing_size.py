"""10,000 queues are expected to be listed in at most 500 pages, garbage within its grace time
included: `docs/formats/chunk-log.md`. Only segments that fill within an hour are longer: they are
not merged before they are sealed.

Queues are not in step with one another, so what a listing of all of them shows is the mean over
time of what one of them shows. Chains are simulated without bytes; a real tier checks that.
"""

from __future__ import annotations

import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.names import Life
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.chunks import chunk_provider

PAGE_KEYS = 1_000
QUEUE_COUNT = 10_000
MAX_PAGES = 500
MAX_FAST_PAGES = 900
RECORD_BYTES = 1_024
UNIT_BYTES = 20
LOG_SEGMENT_BYTES = 1 << 30
DAY_MS = 86_400_000
SETTINGS = ChunkSettings()


class SimulatedSegment:
    """Merged at once; garbage is collected so often."""

    def __init__(self, collect_ms: int = 60_000) -> None:
        self.chain = Chain()
        self.collect_ms = collect_ms

    def commit(self, length: int, now_ms: int) -> int:
        """Returns the number of objects afterwards."""
        self.chain = self.chain.append(length, now_ms, Life(1, 1))
        while (run := SETTINGS.policy.next_run(self.chain.extents)) is not None:
            merged = self.chain.with_merged(run[0].start, run[-1].end, now_ms, Life(1, 1))
            assert merged is not None
            self.chain = merged
        collected_ms = now_ms - now_ms % self.collect_ms
        due = [
            found.name
            for found in self.chain.garbage
            if found.covered_ms + SETTINGS.grace_ms <= collected_ms
        ]
        self.chain = self.chain.drop_garbage(frozenset(due))
        return len(self.chain.extents) + len(self.chain.garbage)


def mean_objects(interval_ms: int, messages: int, days: int) -> float:
    """Of one queue: its last commit log and consume queue segments."""
    log, units = SimulatedSegment(), SimulatedSegment()
    total = turns = 0
    for now_ms in range(0, days * DAY_MS, interval_ms):
        total += log.commit(messages * RECORD_BYTES, now_ms)
        total += units.commit(messages * UNIT_BYTES, now_ms)
        turns += 1
        if log.chain.size_bytes >= LOG_SEGMENT_BYTES:
            break
    return total / turns


@pytest.mark.parametrize(
    ("interval_ms", "messages", "days", "most"),
    [
        pytest.param(600_000, 120, 62, MAX_PAGES, id="1 KiB every 5 s, every 600 s"),
        pytest.param(600_000, 1, 62, MAX_PAGES, id="one message every 600 s"),
        pytest.param(120_000, 24, 20, MAX_PAGES, id="1 KiB every 5 s, every 120 s"),
        pytest.param(30_000, 6, 10, MAX_PAGES, id="1 KiB every 5 s, every 30 s"),
        pytest.param(30_000, 1, 10, MAX_PAGES, id="one message every 30 s"),
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
    segment = tier.open(SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0))
    simulated = SimulatedSegment(collect_ms=1)
    data = bytes(messages * RECORD_BYTES)
    for turn in range(200):
        assert segment.write(turn * len(data), [data]) == Written((turn + 1) * len(data))
        tier.run_maintenance(sweep=False)
        expected = simulated.commit(len(data), clock.now_ms())
        found = sum("/TopicA/" in info.key for info in client.list(""))
        assert abs(found - expected) <= 1, turn
        clock.advance(interval_ms)
