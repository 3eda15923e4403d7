"""Tests of the cost of frequent restarts. After a restart, a queue continues in the same segment
and in a folder of the new epoch."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
    Written,
)
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    decode_epoch_manifest,
    epoch_manifest_name,
)
from tieredstore.providers.memory.objects import MemoryObjectClient

QUEUE = SegmentId("b/T/0", FileSegmentType.COMMIT_LOG, 0)
COMMIT_BYTES = 6 << 10
COMMIT_INTERVAL_MS = 600_000
COMMITS = 400


class Cost(NamedTuple):
    """Means over all starts: objects of the queue, and its entries in the epoch manifest
    (`spans`)."""

    objects: float
    spans: float


def simulate(commits_a_start: int, *, stops: bool) -> Cost:
    """Commit `commits_a_start` times between two starts. With `stops`, stop cleanly before each
    start."""
    clock = ManualClock()
    store = MemoryObjectClient(now_ms=clock.now_ms)
    objects, spans, starts = 0, 0, COMMITS // commits_a_start
    end = 0
    for number in range(1, starts + 1):
        tier = chunk_provider(store, clock=clock, monotonic_ms=clock.now_ms)
        epoch = tier.acquire_writer("b", take_over=True)
        end = commit(tier, end, commits_a_start, clock)
        tier.run_maintenance()
        listed = [info.key for info in store.list("") if "/COMMIT_LOG/" in info.key]
        objects += len(listed)
        inherited = next(
            info.key
            for info in store.list("")
            if info.key.endswith(epoch_manifest_name(number)) and "/.inherited/" in info.key
        )
        content = store.get_range(inherited, 0, 1 << 20)
        assert content is not None
        found = decode_epoch_manifest(number, lambda _, content=content: content)  # type: ignore[misc]
        spans += len(found.find(QUEUE).spans)
        if stops:
            epoch.release()
        tier.close()
    return Cost(objects / starts, spans / starts)


def commit(tier: SegmentProvider, end: int, count: int, clock: ManualClock) -> int:
    listings = {found.id: found for found in tier.list("b")}
    assert sum(found.size_bytes for found in listings.values()) == end
    segment = tier.open(QUEUE, listings.get(QUEUE, SegmentListing(QUEUE, 0)))
    for _ in range(count):
        assert segment.write(end, [b"x" * COMMIT_BYTES]) == Written(end + COMMIT_BYTES)
        end += COMMIT_BYTES
        clock.advance(COMMIT_INTERVAL_MS)
        tier.run_maintenance(sweep=False)  # type: ignore[attr-defined]
    return end


@pytest.mark.parametrize("stops", [True, False])
def test_a_start_before_each_commit_makes_a_queue_few_more_objects(*, stops: bool) -> None:
    rarely, always = simulate(COMMITS // 4, stops=stops), simulate(1, stops=stops)
    assert always.objects <= 1.1 * rarely.objects
    assert rarely.spans <= 1.5
    assert always.spans <= 16  # each commit in a folder of its own, until they are merged
