"""Tests of the cost of reads. A random reader pays only for its own requests. A sequential reader
rarely waits for a round trip. Latency is simulated."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier.fetch import TOPIC, AtOnce, Later, Tier, offsets_of
from tests.kit.waiting import WatchedLock, wait_for
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.tag_filter import TagFilter
from tieredstore.tier.fetch import block_fetcher, read_ahead_stream
from tieredstore.tier.fetch.block_reading import read_named
from tieredstore.tier.fetch.in_flight import Fetch, Flight
from tieredstore.tier.fetch.read_ahead import Block
from tieredstore.tier.reading import Reading, Wait

LOG, QUEUE = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


def make_tier(path: Path, count: int, ahead: Executor | None = None, **config: Any) -> Tier:
    tier = Tier(path, **config)
    if count:
        tier.add(count)
    tier.new_fetcher(ahead=ahead)
    tier.provider.forget_reads()
    return tier


def size_of(tier: Tier) -> int:
    """Return the number of bytes of the commit log of queue 0."""
    return tier.file().commit_log_commit_offset


def size_of_all(result: GetMessageResult) -> int:
    return sum(message.size for message in result.messages)


def read_all(tier: Tier, pull: int = 32, tags: str | None = None) -> list[int]:
    """Return the queue offsets of all messages, read `pull` messages at a time."""
    found: list[int] = []
    offset, end = 0, tier.file().consume_queue_commit_offset
    while offset < end:
        result = tier.get(offset, pull, TagFilter.parse(tags) if tags else None)
        found += offsets_of(result)
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return found


# Random readers


@pytest.mark.parametrize("pull", [2, 32, 200])
def test_a_random_reader_is_given_what_it_asked_for_and_pays_for_no_more(
    tmp_path: Path, pull: int
) -> None:
    tier = make_tier(tmp_path, 5000, AtOnce())
    served = 0
    offsets = [4000, 17, 2500, 1000, 3300, 600]
    for offset in offsets:
        served += size_of_all(tier.get(offset, pull))
    assert tier.provider.read_bytes[LOG] == served
    assert tier.provider.reads_of(LOG) == tier.provider.reads_of(QUEUE) == len(offsets)
    most_units = len(offsets) * (pull + read_ahead_stream.FIRST_SURPLUS)
    assert tier.provider.read_bytes[QUEUE] == most_units * UNIT_SIZE


def test_large_messages_are_not_read_beyond_what_one_get_may_answer(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 0, AtOnce())
    tier.add(100, body=bytes(100_000))
    result = tier.get(50, 32)
    assert len(result.messages) == 3
    assert tier.provider.read_bytes[LOG] == size_of_all(result)


def test_a_reader_of_single_messages_is_not_run_ahead_of(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 100, AtOnce())
    for offset in range(32):
        assert offsets_of(tier.get(offset, 1)) == [offset]
    assert tier.provider.reads_of(LOG) == 1
    assert tier.fetcher.cache.block_count == 1


# Sequential readers


def blocks_of(tier: Tier, first: int = 0) -> list[int]:
    """Return the number of messages in each cached block from message `first` on."""
    counts = []
    while (block := tier.fetcher.cache.find(tier.file_key, first, tier.file())) is not None:
        counts.append(block.end - block.start)
        first = block.end
    return counts


def test_each_block_of_a_sequential_reader_is_twice_as_large_up_to_the_limit(
    tmp_path: Path,
) -> None:
    tier = make_tier(tmp_path, 3000, read_ahead_message_count_threshold=512)
    assert read_all(tier) == list(range(3000))
    assert blocks_of(tier) == [32, 64, 128, 256, 512, 512, 512, 512, 472]


def test_blocks_end_where_they_would_pass_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(tmp_path, 2000)
    size = tier.get(0, 1).messages[0].size
    monkeypatch.setattr("tieredstore.tier.fetch.read_ahead_stream.BLOCK_BYTES", 200 * size)
    tier.new_fetcher(ahead=AtOnce())
    assert read_all(tier) == list(range(2000))
    assert max(blocks_of(tier)) <= 201


@pytest.mark.parametrize("ahead", [None, AtOnce()], ids=["when asked", "ahead"])
@pytest.mark.parametrize("pull", [1, 32, 1024])
def test_a_sequential_reader_reads_each_byte_once_and_few_units_twice(
    tmp_path: Path, ahead: Executor | None, pull: int
) -> None:
    tier = make_tier(tmp_path, 0, ahead)
    tier.add(6000, body=bytes(500))
    assert read_all(tier, pull) == list(range(6000))
    assert tier.provider.read_bytes[LOG] == size_of(tier)
    assert tier.provider.read_bytes[QUEUE] <= 1.1 * 6000 * UNIT_SIZE
    assert tier.provider.read_bytes.total() <= 1.1 * size_of(tier)


@pytest.mark.parametrize("ahead", [None, AtOnce()], ids=["when asked", "ahead"])
def test_what_is_read_of_a_queue_of_many_segments_is_read_once(
    tmp_path: Path, ahead: Executor | None
) -> None:
    tier = make_tier(
        tmp_path,
        1000,
        ahead,
        commit_log_max_size_bytes=20_000,
        consume_queue_max_size_bytes=70 * UNIT_SIZE,
    )
    assert read_all(tier) == list(range(1000))
    assert tier.provider.read_bytes[LOG] == size_of(tier)


def test_what_is_fetched_ahead_is_bounded_in_blocks(tmp_path: Path) -> None:
    later = Later()
    tier = make_tier(tmp_path, 3000, later, read_ahead_message_count_threshold=32)
    offset = most = 0
    while offset < 3000:
        offset = tier.get(offset, 32).next_begin_offset
        most = max(most, len(later.kept))
        if len(later.kept) == read_ahead_stream.BLOCKS_AHEAD:
            later.do_all()
    assert most == read_ahead_stream.BLOCKS_AHEAD


def test_what_is_on_its_way_counts_against_the_room_in_the_cache(tmp_path: Path) -> None:
    later = Later()
    tier = make_tier(
        tmp_path,
        4000,
        later,
        read_ahead_message_count_threshold=512,
        read_ahead_cache_size_bytes=400_000,
        max_transfer_bytes_in_memory=4000,
    )
    cache = tier.fetcher.cache
    offset = 0
    while offset < 4000:
        offset = tier.get(offset, 32).next_begin_offset
        assert cache.room_bytes() >= 0
        later.do_all()
        assert cache.size_bytes <= 400_000
    assert cache.stats.wasted_messages == 0
    assert tier.provider.read_bytes[LOG] == size_of(tier)


def test_room_comes_back_when_a_fetch_ahead_fails(tmp_path: Path) -> None:
    later = Later()
    tier = make_tier(tmp_path, 2000, later)
    cache = tier.fetcher.cache
    tier.get(0)
    tier.get(32)
    before = cache.room_bytes()
    assert later.kept
    tier.provider.is_down = True
    later.do_all()
    tier.provider.is_down = False
    assert cache.room_bytes() > before
    assert read_all(tier) == list(range(2000))
    cache.drop(tier.file_key)
    assert cache.room_bytes() == int(0.8 * (64 << 20))


def test_a_failed_fetch_ahead_is_nobodys_error(tmp_path: Path) -> None:
    later = Later()
    tier = make_tier(tmp_path, 500, later)
    tier.get(0)
    tier.get(32)
    tier.provider.is_down = True
    later.do_all()
    assert offsets_of(tier.get(64)) == list(range(64, 96))
    tier.provider.is_down = False
    assert offsets_of(tier.get(96)) == list(range(96, 128))


def test_nothing_is_fetched_behind_the_end(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 100, AtOnce())
    assert read_all(tier) == list(range(100))
    assert tier.provider.read_bytes[LOG] == size_of(tier)
    tier.add(10)
    assert offsets_of(tier.get(100)) == list(range(100, 110))


def test_without_an_executor_each_block_is_fetched_when_it_is_asked_for(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 1000)
    tier.get(0)
    tier.get(32)
    assert tier.fetcher.cache.block_count == 2


def test_a_backend_at_hand_is_not_read_ahead(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 1000, AtOnce())
    tier.fetcher._reads_wait = False
    tier.get(0)
    tier.get(32)
    assert tier.fetcher.cache.block_count == 2


def test_a_backend_that_has_to_be_waited_for_is_read_ahead_whatever_it_is(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 1000, AtOnce())
    tier.fetcher._reads_wait = False
    tier.provider.on_read = lambda: tier.clock.advance(30)
    tier.get(0)
    tier.get(32)
    assert tier.fetcher.cache.block_count > 2


def test_the_work_on_a_block_at_hand_is_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(tmp_path, 1000, AtOnce())
    tier.fetcher._reads_wait = False
    tier.provider.is_slow = False

    def take_long(*arguments: Any, **named: Any) -> Reading[Block]:
        block = yield from read_named(*arguments, **named)
        tier.clock.advance(30)
        return block

    monkeypatch.setattr(block_fetcher, "read_named", take_long)
    tier.get(0)
    tier.get(32)
    assert tier.fetcher.cache.block_count == 2


# Round trips


class RoundTrips:
    """Makes gets and counts round trips. When a get has to wait, all fetches in flight complete in
    one round trip."""

    def __init__(self, tier: Tier, later: Later) -> None:
        self._tier = tier
        self._later = later
        self.count = 0

    def get(self, offset: int, pull: int = 32) -> GetMessageResult:
        request = GetRequest(TOPIC, 0, offset, pull, 1 << 40, "g", None)
        steps = self._tier.fetcher.get_in_steps(request)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Wait):
                    flight = getattr(step.now, "__self__", None)
                    if isinstance(flight, Flight) and not flight.has_landed:
                        self._pass()
                    step = steps.send(step.now())
                else:
                    self._pass()
                    step = steps.send([read.read_blocking() for read in step])
        except StopIteration as stop:
            result: GetMessageResult = stop.value
            return result

    def _pass(self) -> None:
        self.count += 1
        self._later.do_all()

    def taken(self, offset: int, pull: int = 32) -> int:
        before = self.count
        result = self.get(offset, pull)
        assert result.status is GetMessageStatus.FOUND
        return self.count - before


@pytest.fixture
def later() -> Later:
    return Later()


def test_a_first_message_takes_two_round_trips_and_one_where_the_units_are_known(
    tmp_path: Path, later: Later
) -> None:
    tier = make_tier(tmp_path, 5000, later)
    trips = RoundTrips(tier, later)
    for offset in (0, 3000, 1000):
        assert trips.taken(offset) == 2
        assert trips.taken(offset + 32) == 1


@pytest.mark.parametrize("pull", [32, 1024])
def test_a_miss_of_a_sequential_reader_costs_one_round_trip_after_the_first(
    tmp_path: Path, later: Later, pull: int
) -> None:
    tier = make_tier(tmp_path, 20_000, later)
    trips = RoundTrips(tier, later)
    offset, taken = 0, []
    while offset < 20_000:
        before = trips.count
        offset = trips.get(offset, pull).next_begin_offset
        taken.append(trips.count - before)
    assert taken[0] == 2
    assert max(taken[1:]) == 1


def test_a_sequential_reader_waits_for_few_round_trips(tmp_path: Path, later: Later) -> None:
    """A sequential reader waits for few round trips. The first block needs two. The number of
    blocks fetched at once then doubles, up to eight."""
    tier = make_tier(tmp_path, 20_000, later, read_ahead_message_count_threshold=1000)
    trips = RoundTrips(tier, later)
    offset = 0
    while offset < 20_000:
        offset = trips.get(offset).next_begin_offset
    assert tier.provider.reads_of(LOG) >= 24
    assert trips.count <= 10


def test_a_reader_does_not_wait_behind_others_for_what_nobody_has_begun(tmp_path: Path) -> None:
    later = Later()
    tier = make_tier(tmp_path, 2000, later)
    tier.get(0)
    tier.get(32)
    assert later.kept  # 96 on: planned, and not executed
    assert offsets_of(tier.get(96)) == list(range(96, 128))
    reads = tier.provider.reads_of(LOG)
    later.do_all()
    assert tier.fetcher.cache.find(tier.file_key, 96, tier.file()) is not None
    tier.fetcher.cache.find(tier.file_key, 96, tier.file())
    assert tier.provider.read_bytes[LOG] <= size_of(tier)
    assert reads == 3


def test_a_coroutine_waits_for_what_is_on_its_way_and_reads_nothing_twice(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        tier = make_tier(tmp_path, 3000, pool)

        async def read_on() -> list[int]:
            offset, found = 0, []
            while offset < 3000:
                result = await tier.fetcher.get_message_async("G", TOPIC, 0, offset, 32)
                found += offsets_of(result)
                offset = result.next_begin_offset
            return found

        assert asyncio.run(read_on()) == list(range(3000))
    assert tier.provider.read_bytes[LOG] == size_of(tier)


# Several readers


def test_groups_that_read_the_same_messages_share_blocks(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 5000, AtOnce())
    offsets = [0, 0, 0]
    while min(offsets) < 5000:
        for group, pull in enumerate((32, 100, 7)):
            if offsets[group] < 5000:
                result = tier.get(offsets[group], pull)
                assert offsets_of(result)[0] == offsets[group]
                offsets[group] = result.next_begin_offset
    assert tier.provider.read_bytes[LOG] == size_of(tier)


def test_threads_that_read_the_same_messages_share_blocks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(4) as readers:
        tier = make_tier(tmp_path, 5000, pool)
        found = list(readers.map(lambda pull: read_all(tier, pull), (32, 32, 100, 64)))
    assert found == [list(range(5000))] * 4
    assert tier.provider.read_bytes[LOG] == size_of(tier)


def test_what_lands_while_a_reader_comes_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(tmp_path, 200)
    find, others = tier.fetcher.cache.find, [0]

    def find_late(*place: Any) -> Block | None:
        block = find(*place)
        if others:
            tier.get(others.pop())
        return block

    monkeypatch.setattr(tier.fetcher.cache, "find", find_late)
    assert offsets_of(tier.get(0)) == list(range(32))
    assert tier.provider.reads_of(LOG) == 1


def test_what_lands_between_two_looks_of_a_plan_is_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for look in ("_find_end", "_skip_taken"):
        tier = make_tier(tmp_path / look, 100)
        file, key, cache = tier.file(), tier.file_key, tier.fetcher.cache
        planner, flights = tier.fetcher._blocks.planner, tier.fetcher._blocks.flights
        flight = flights.join(Fetch(file, key, 40, 20, size_bytes=1 << 20, room_bytes=1 << 20))
        block = Block(file, key, 40, 60, [], [], [], 0)

        def land_behind(
            call: Any, flight: Flight = flight, block: Block = block, tier: Tier = tier
        ) -> Any:
            def called(*place: Any) -> Any:
                found = call(*place)
                if not flight.has_landed:
                    tier.fetcher.cache.put(block)
                    tier.fetcher._blocks.flights.land(flight, block)
                return found

            return called

        for owner, name in (
            (cache, "next_start"),
            (cache, "find_end"),
            (flights, "find_next_start"),
            (flights, "find"),
        ):
            monkeypatch.setattr(owner, name, land_behind(getattr(owner, name)))
        if look == "_find_end":
            assert planner._find_end(key, 0, 100) == 40
        else:
            assert planner._skip_taken(file, key, 40) == 60


def test_what_is_planned_is_on_its_way_before_another_reader_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(tmp_path, 200)
    blocks = tier.fetcher._blocks
    lock = WatchedLock(blocks._planning)
    join = blocks.flights.join
    other = threading.Thread(target=tier.get, args=(16,))

    def join_late(fetch: Fetch) -> Flight:
        if other.ident is None:
            other.start()
            wait_for(lambda: other.ident in lock.waited)
        return join(fetch)

    monkeypatch.setattr(blocks, "_planning", lock)
    monkeypatch.setattr(blocks.flights, "join", join_late)
    tier.get(0)
    other.join(60)
    assert tier.provider.reads_of(LOG) == 1


@pytest.mark.parametrize("ahead", [None, AtOnce()], ids=["when asked", "ahead"])
@pytest.mark.parametrize("tags", ["yes", "no"])
def test_a_filter_reads_no_message_twice(tmp_path: Path, ahead: Executor | None, tags: str) -> None:
    tier = make_tier(tmp_path, 0, ahead, read_ahead_message_count_threshold=300)
    tier.add(3000, tags=["no"] * 99 + ["yes"])
    wanted = [n for n in range(3000) if (n % 100 == 99) == (tags == "yes")]
    assert read_all(tier, 32, tags) == wanted
    assert tier.provider.read_bytes[LOG] == size_of(tier)
    assert tier.provider.read_bytes[QUEUE] <= 1.5 * 3000 * UNIT_SIZE


# Around the cache


def test_reads_around_the_cache_are_bounded_in_number_and_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_fetcher, "READS_AROUND", 3)
    tier = Tier(tmp_path, read_ahead_cache_enable=False, max_transfer_bytes_in_memory=20_000)
    for queue_id in range(8):
        tier.add(100, queue_id=queue_id, body=bytes(1000))
    tier.new_fetcher()
    tier.provider.forget_reads()
    may_go_on = threading.Event()
    lock = threading.Lock()
    under_way: list[int] = [0, 0]

    def count_one() -> None:
        with lock:
            under_way[0] += 1
            under_way[1] = max(under_way)
        may_go_on.wait(60)
        with lock:
            under_way[0] -= 1

    tier.provider.on_read = count_one

    async def read_some() -> list[int]:
        gets = (tier.fetcher.get_message_async("g", TOPIC, n, 0, 99) for n in range(4, 8))
        return [size_of_all(result) for result in await asyncio.gather(*gets)]

    with ThreadPoolExecutor(5) as readers:
        reading = [readers.submit(tier.get, 0, 99, None, n) for n in range(4)]
        wait_for(lambda: under_way[0] == 3)
        coroutines = readers.submit(asyncio.run, read_some())
        may_go_on.set()
        found = [size_of_all(one.result(60)) for one in reading] + coroutines.result(60)
    assert under_way[1] == 3
    assert all(20_000 <= size < 22_000 for size in found)
    assert tier.provider.read_bytes[LOG] == sum(found)


def test_a_reader_that_gives_up_leaves_its_place_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_fetcher, "READS_AROUND", 1)
    tier = make_tier(tmp_path, 100, read_ahead_cache_enable=False)
    may_go_on = threading.Event()
    tier.provider.on_read = lambda: may_go_on.wait(60)

    async def read_some() -> int:
        get = tier.fetcher.get_message_async
        readers = [asyncio.ensure_future(get("g", TOPIC, 0, n, 5)) for n in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        readers[1].cancel()  # it waits for its turn
        await asyncio.sleep(0)
        may_go_on.set()
        results = await asyncio.gather(*readers, return_exceptions=True)
        return sum(isinstance(result, GetMessageResult) for result in results)

    assert asyncio.run(read_some()) == 3
    assert len(tier.get(0, 5).messages) == 5


def test_a_blocking_get_inside_the_event_loop_waits_for_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_fetcher, "READS_AROUND", 1)
    tier = make_tier(tmp_path, 100, read_ahead_cache_enable=False)

    async def read_both() -> tuple[list[int], list[int]]:
        first = asyncio.ensure_future(tier.fetcher.get_message_async("g", TOPIC, 0, 0, 5))
        await asyncio.sleep(0)  # it has the place
        blocking = tier.get(50, 5)
        return offsets_of(await first), offsets_of(blocking)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: asyncio.run(read_both())).result(60)
    assert found == (list(range(5)), list(range(50, 55)))
