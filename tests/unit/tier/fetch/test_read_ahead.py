"""Tests of the read-ahead cache: which blocks are kept, for how long, and the messages they
return."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter
from tieredstore.tier.fetch.in_flight import Fetch, SingleFlight
from tieredstore.tier.fetch.read_ahead import (
    MESSAGE_OVERHEAD_BYTES,
    Block,
    ReadAheadCache,
    Taken,
)

if TYPE_CHECKING:
    from tieredstore.tier.flat.message_file import FlatMessageFile

KEY = QueueKey("topic", 0)
OWNER = object()


@dataclass
class Sized:
    """A stand-in for a message, with only the fields that a block uses."""

    queue_offset: int
    size: int
    tags_code: int = 0


def block_of(
    start: int,
    end: int,
    *,
    size: int = 100,
    holes: frozenset[int] = frozenset(),
    key: QueueKey = KEY,
    owner: object = OWNER,
) -> Block:
    offsets = [offset for offset in range(start, end) if offset not in holes]
    messages = [Sized(offset, size, offset % 3) for offset in offsets]
    ends = [size * (n + 1) for n in range(len(offsets))]
    stored = cast("list[StoredMessage]", messages)
    return Block(owner, key, start, end, stored, offsets, ends, size * (end - start))


def cache_of(
    limit: int = 1 << 20, expire_ms: int = 15_000, clock: ManualClock | None = None
) -> ReadAheadCache:
    return ReadAheadCache(limit, expire_ms, clock or ManualClock())


def offsets_of(taken: Taken) -> list[int]:
    return [message.queue_offset for message in taken.messages]


def test_take_goes_on_behind_the_last_message_taken() -> None:
    taken = block_of(100, 200).take(120, 32, 1 << 20)
    assert offsets_of(taken) == list(range(120, 152))
    assert taken.next_offset == 152
    assert taken.size_bytes == 3200


def test_take_to_the_end_passes_the_whole_block() -> None:
    block = block_of(100, 200)
    assert block.take(180, 32, 1 << 20).next_offset == 200
    assert block.unread == 0


def test_take_ends_after_the_message_that_reaches_the_byte_limit() -> None:
    block = block_of(0, 10)
    assert offsets_of(block.take(0, 10, 250)) == [0, 1, 2]
    assert offsets_of(block.take(0, 10, 300)) == [0, 1, 2]
    assert offsets_of(block.take(4, 10, 1)) == [4]


def test_holes_never_shift_offsets() -> None:
    block = block_of(0, 6, holes=frozenset({2, 5}))
    assert offsets_of(block.take(0, 32, 1 << 20)) == [0, 1, 3, 4]
    assert block.take(0, 32, 1 << 20).next_offset == 6
    assert offsets_of(block.take(2, 1, 1 << 20)) == [3]
    assert block.take(2, 1, 1 << 20).next_offset == 4
    nothing = block.take(5, 32, 1 << 20)
    assert (list(nothing.messages), nothing.next_offset) == ([], 6)


def test_filter_passes_what_it_refuses() -> None:
    block = block_of(0, 9)
    taken = block.take(0, 2, 1 << 20, TagFilter([1]))
    assert (offsets_of(taken), taken.next_offset) == ([1, 4], 5)
    taken = block.take(5, 2, 1 << 20, TagFilter([1]))
    assert (offsets_of(taken), taken.next_offset) == ([7], 9)
    taken = block.take(0, 2, 1 << 20, TagFilter([7]))
    assert (offsets_of(taken), taken.next_offset) == ([], 9)


@given(
    holes=st.frozensets(st.integers(0, 39)),
    offset=st.integers(0, 39),
    max_count=st.integers(1, 50),
    max_bytes=st.integers(1, 5000),
    codes=st.none() | st.frozensets(st.integers(0, 2)),
)
def test_take_agrees_with_a_walk_over_single_messages(
    holes: frozenset[int], offset: int, max_count: int, max_bytes: int, codes: frozenset[int] | None
) -> None:
    block = block_of(0, 40, holes=holes)
    found: list[int] = []
    following = offset
    while following < 40 and len(found) < max_count and len(found) * 100 < max_bytes:
        if following not in holes and (codes is None or following % 3 in codes):
            found.append(following)
        following += 1
    message_filter = None if codes is None else TagFilter(codes)
    taken = block.take(offset, max_count, max_bytes, message_filter)
    assert offsets_of(taken) == found
    # Holes after the last message may be skipped or not. No range with a message is skipped.
    assert following <= taken.next_offset
    assert set(range(following, taken.next_offset)) <= holes
    assert taken.size_bytes == 100 * len(found)


def test_find_gives_the_block_that_holds_an_offset() -> None:
    cache = cache_of()
    first, second = block_of(0, 10), block_of(10, 20)
    cache.put(second)
    cache.put(first)
    assert cache.find(KEY, 9, OWNER) is first
    assert cache.find(KEY, 10, OWNER) is second
    assert cache.find(KEY, 20, OWNER) is None
    assert cache.find(QueueKey("topic", 1), 0, OWNER) is None
    assert cache.find_next(first) is second
    assert cache.find_next(second) is None
    assert cache.next_start(KEY, 3) == 10
    assert cache.next_start(KEY, 10) is None


def test_a_queue_made_again_never_sees_blocks_of_its_predecessor() -> None:
    cache = cache_of()
    cache.put(block_of(0, 10))
    assert cache.find(KEY, 0, object()) is None
    assert cache.block_count == 0


def test_blocks_expire_after_their_last_access() -> None:
    clock = ManualClock()
    cache = cache_of(clock=clock)
    cache.put(block_of(0, 10))
    clock.advance(14_999)
    assert cache.find(KEY, 0, OWNER) is not None
    clock.advance(14_999)
    assert cache.find(KEY, 0, OWNER) is not None
    clock.advance(15_000)
    assert cache.find(KEY, 0, OWNER) is None
    assert (cache.block_count, cache.size_bytes) == (0, 0)


def test_expire_needs_no_reader() -> None:
    clock = ManualClock()
    cache = cache_of(clock=clock)
    cache.put(block_of(0, 10))
    clock.advance(15_000)
    cache.expire()
    assert cache.block_count == 0


def test_the_least_recently_used_block_goes_first_and_the_limit_is_in_bytes() -> None:
    weight = block_of(0, 10).weight
    assert weight == 1000 + 11 * MESSAGE_OVERHEAD_BYTES
    cache = cache_of(limit=2 * weight)
    cache.put(block_of(0, 10))
    cache.put(block_of(10, 20))
    cache.find(KEY, 0, OWNER)
    cache.put(block_of(20, 30))
    assert cache.find(KEY, 10, OWNER) is None
    assert cache.find(KEY, 0, OWNER) is not None
    assert cache.size_bytes == 2 * weight


def test_a_block_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = cache_of(limit=5000)
    cache.put(block_of(0, 1))
    assert not cache.put(block_of(10, 1000))
    assert cache.block_count == 1


def test_putting_a_block_again_replaces_it() -> None:
    cache = cache_of()
    cache.put(block_of(0, 10))
    replacement = block_of(0, 20)
    cache.put(replacement)
    assert cache.find(KEY, 15, OWNER) is replacement
    assert cache.block_count == 1


def test_room_is_what_unread_blocks_leave_of_the_fill_ratio() -> None:
    weight = block_of(0, 10).weight
    cache = cache_of(limit=5 * weight)
    blocks = [block_of(10 * n, 10 * n + 10) for n in range(5)]
    assert cache.room_bytes() == 4 * weight
    for block in blocks:
        cache.put(block)
    assert cache.room_bytes() == -weight
    blocks[0].take(0, 32, 1 << 20)
    cache.read_to_end(blocks[0])
    cache.read_to_end(blocks[0])
    assert cache.room_bytes() == 0
    cache.drop(KEY)
    assert cache.room_bytes() == 4 * weight


def test_room_comes_back_when_blocks_expire() -> None:
    clock = ManualClock()
    cache = cache_of(limit=2 * block_of(0, 10).weight, clock=clock)
    room = cache.room_bytes()
    cache.put(block_of(0, 10))
    assert cache.room_bytes() < room
    clock.advance(15_000)
    assert cache.room_bytes() == room


def test_statistics_count_accesses_hits_and_waste() -> None:
    cache = cache_of()
    block = block_of(0, 10)
    cache.find(KEY, 0, OWNER)
    cache.put(block)
    cache.find(KEY, 0, OWNER)
    block.take(0, 4, 1 << 20)
    cache.drop(KEY)
    assert cache.stats == (2, 1, 10, 6)


def test_drop_forgets_one_queue_only() -> None:
    cache = cache_of()
    other = QueueKey("topic", 1)
    cache.put(block_of(0, 10))
    cache.put(block_of(10, 20))
    cache.put(block_of(0, 10, key=other))
    cache.drop(KEY)
    assert cache.find(KEY, 0, OWNER) is None
    assert cache.find(other, 0, OWNER) is not None


def test_one_fetch_at_a_time_for_an_offset() -> None:
    flights = SingleFlight()
    flight = flights.join(fetch_of(0, 100))
    assert flight.lead()
    assert not flight.lead()
    assert flights.join(fetch_of(50, 150)) is flight
    assert flights.find(KEY, 99, OWNER) is flight
    assert flights.find(KEY, 99, object()) is None  # a recreated queue
    beyond = flights.join(fetch_of(100, 200))
    assert beyond is not flight
    assert flights.find_next_start(KEY, 50) == 100
    block = block_of(0, 100)
    flights.land(flight, block)
    assert flight.has_landed
    assert asyncio.run(flight.wait_async()) is block
    again = flights.join(fetch_of(50, 150))
    assert again is not flight
    for open_flight in (beyond, again):
        flights.land(open_flight, None)
    assert flights.find_next_start(KEY, 0) is None


def fetch_of(start: int, end: int) -> Fetch:
    return Fetch(cast("FlatMessageFile", OWNER), KEY, start, end - start, size_bytes=1 << 20)


def test_concurrent_readers_keep_the_cache_consistent() -> None:
    cache = cache_of(limit=20 * block_of(0, 10).weight)
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            for n in range(300):
                start = (seed * 37 + n * 7) % 50 * 10
                block = cache.find(KEY, start, OWNER)
                if block is None:
                    block = block_of(start, start + 10)
                    cache.put(block)
                assert block.start <= start < block.end
                block.take(start, 10, 1 << 20)
                cache.read_to_end(block)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.drop(KEY)
    assert (cache.block_count, cache.size_bytes) == (0, 0)
    assert cache.room_bytes() == 16 * block_of(0, 10).weight


@pytest.mark.parametrize(
    ("expression", "tags_code", "wanted"),
    [
        ("TagA || TagC", 2598919, True),
        ("TagA || TagC", 2598921, True),
        ("TagA || TagC", 2598920, False),
        ("TagA", 2598919 + (1 << 32), True),
        ("*", 5, True),
        ("", 5, True),
        (None, 5, True),
        ("TagA", None, True),
    ],
)
def test_tag_filter_compares_the_low_32_bits_of_the_code(
    expression: str | None, tags_code: int | None, wanted: bool
) -> None:
    assert TagFilter.parse(expression).is_matched_by_consume_queue(tags_code) is wanted
