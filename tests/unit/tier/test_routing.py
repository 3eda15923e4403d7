"""Tests of how gets are routed to the local store or the tier."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.tier import read_plan, routing

KEY = QueueKey("topic", 0)


@dataclass
class Queue:
    consume_queue_commit_offset: int


@dataclass
class Source:
    """Source with all messages from queue offset `stored` on. Those from `resident` on are in
    memory."""

    stored: int
    resident: int

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        return offset >= self.stored

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        return offset >= self.resident


def reads_tier(level: StorageLevel, source: Source, queue: Queue | None, offset: int) -> bool:
    """Return whether a get reads the tier. `source` only has the methods needed for this
    decision."""
    return read_plan.reads_tier(level, cast("DispatchSource", source), queue, KEY, offset)


@pytest.mark.parametrize(
    ("level", "offset", "tier"),
    [
        (StorageLevel.DISABLE, 0, False),
        (StorageLevel.DISABLE, 250, False),
        (StorageLevel.NOT_IN_DISK, 0, True),
        (StorageLevel.NOT_IN_DISK, 99, True),
        (StorageLevel.NOT_IN_DISK, 100, False),
        (StorageLevel.NOT_IN_DISK, 250, False),
        (StorageLevel.NOT_IN_MEM, 99, True),
        (StorageLevel.NOT_IN_MEM, 100, True),
        (StorageLevel.NOT_IN_MEM, 200, False),
        (StorageLevel.NOT_IN_MEM, 300, False),
        (StorageLevel.FORCE, 0, True),
        (StorageLevel.FORCE, 250, True),
        (StorageLevel.FORCE, 300, True),
    ],
)
def test_level_decides_who_answers(level: StorageLevel, offset: int, tier: bool) -> None:
    source = Source(stored=100, resident=200)
    assert reads_tier(level, source, Queue(300), offset) is tier


@pytest.mark.parametrize("level", [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM])
def test_what_the_tier_does_not_have_is_read_locally(level: StorageLevel) -> None:
    gone = Source(stored=1000, resident=1000)
    assert not reads_tier(level, gone, None, 0)
    assert not reads_tier(level, gone, Queue(50), 50)
    assert reads_tier(level, gone, Queue(50), 49)


def test_force_asks_the_tier_even_for_a_queue_that_it_does_not_have() -> None:
    assert reads_tier(StorageLevel.FORCE, Source(0, 0), None, 0)


def test_defect_d11_an_unknown_offset_never_wins() -> None:
    assert routing.find_earliest(-1, 7) == 7
    assert routing.find_earliest(7, -1) == 7
    assert routing.find_earliest(3, 7) == 3
    assert routing.find_earliest(0, 7) == 0
    assert routing.find_earliest(-1, -1) == -1


@pytest.mark.parametrize(
    ("end", "local_earliest", "asked"), [(50, 100, 50), (150, 100, 100), (150, -1, 150)]
)
def test_defect_d23_the_end_of_a_query_is_respected(
    end: int, local_earliest: int, asked: int
) -> None:
    assert routing.tier_query_end_ms(end, local_earliest) == asked


def side(times: list[int], low: int, high: int) -> routing.TimeSide:
    """Return a fake store with messages [low, high) of a queue. `times[n]` is the store time of
    message n."""

    def search(timestamp_ms: int, boundary: BoundaryType) -> int:
        if boundary is BoundaryType.LOWER:
            return bisect.bisect_left(times, timestamp_ms, low, high)
        return max(bisect.bisect_right(times, timestamp_ms, low, high) - 1, low)

    return routing.TimeSide(low, high, search, times.__getitem__)


@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=30).map(sorted),
    data=st.data(),
    timestamp=st.integers(-1, 32),
)
def test_time_search_over_both_sides_is_that_of_one_store(
    times: list[int], data: st.DataObject, timestamp: int
) -> None:
    count = len(times)
    tier_low = data.draw(st.integers(0, count))
    tier_high = data.draw(st.integers(tier_low, count))
    local_low = data.draw(st.integers(0, tier_high))
    low, high = min(tier_low, local_low), max(tier_high, count)
    if tier_low == tier_high:
        low = local_low
    sides = [side(times, tier_low, tier_high), side(times, local_low, count)]
    if low == high:
        return
    held = times[low:high]
    lower = low + bisect.bisect_left(held, timestamp)
    upper = low + max(bisect.bisect_right(held, timestamp) - 1, 0)
    assert routing.offset_by_time(sides, timestamp, BoundaryType.LOWER) == lower
    assert routing.offset_by_time(sides, timestamp, BoundaryType.UPPER) == upper


@given(
    times=st.lists(st.integers(0, 30), min_size=2, max_size=30, unique=True).map(sorted),
    data=st.data(),
    timestamp=st.integers(-1, 32),
)
def test_time_search_finds_what_another_side_has_in_a_hole(
    times: list[int], data: st.DataObject, timestamp: int
) -> None:
    count = len(times)
    begin, end = sorted(data.draw(st.tuples(st.integers(1, count), st.integers(1, count))))
    low = data.draw(st.integers(0, count))
    high = data.draw(st.integers(low, count))
    tier_high = data.draw(st.integers(end, count))
    in_tier = [n for n in range(tier_high) if not begin <= n < end]

    def search(timestamp_ms: int, boundary: BoundaryType) -> int:
        if boundary is BoundaryType.LOWER:
            return next((n for n in in_tier if times[n] >= timestamp_ms), tier_high)
        return max((n for n in in_tier if times[n] <= timestamp_ms), default=0)

    holes = [(begin, end)] if begin < end else []
    tier = routing.TimeSide(0, tier_high, search, times.__getitem__, holes)
    sides = [tier, side(times, low, high)]
    held = sorted({*in_tier, *range(low, high)})
    lower = next(
        (n for n in held if times[n] >= timestamp), max(tier_high, high if low < high else 0)
    )
    upper = max((n for n in held if times[n] <= timestamp), default=0)
    assert routing.offset_by_time(sides, timestamp, BoundaryType.LOWER) == lower
    assert routing.offset_by_time(sides, timestamp, BoundaryType.UPPER) == upper


def test_time_search_without_messages_finds_nothing() -> None:
    assert routing.offset_by_time([side([], 0, 0)], 5, BoundaryType.LOWER) == -1


def test_time_search_crosses_a_hole_between_tier_and_local_store() -> None:
    times = list(range(0, 1000, 10))
    sides = [side(times, 0, 10), side(times, 50, 100)]
    assert routing.offset_by_time(sides, 200, BoundaryType.LOWER) == 50
    assert routing.offset_by_time(sides, 200, BoundaryType.UPPER) == 9
