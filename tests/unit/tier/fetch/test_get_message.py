"""Tests of gets from the tier: statuses, limits, damage, caching and concurrency."""

from __future__ import annotations

import asyncio
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.tier.fetch import TOPIC, Tier, offsets_of, run_threads
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.hashes import tags_code
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter
from tieredstore.tier.fetch.block_fetcher import BAD_MESSAGES, READ_ERRORS
from tieredstore.tier.fetch.block_reading import read_block
from tieredstore.tier.reading import run

LOG, QUEUE = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    """A tier. Each test runs with the read-ahead cache and without it."""
    return Tier(tmp_path, read_ahead_cache_enable=request.param)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 100),
        (99, GetMessageStatus.OFFSET_TOO_SMALL, 100),
        (100, GetMessageStatus.FOUND, 132),
        (199, GetMessageStatus.FOUND, 200),
        (200, GetMessageStatus.OFFSET_OVERFLOW_ONE, 200),
        (201, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 200),
        (2**62, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 200),
    ],
)
def test_status_and_next_offset(
    tier: Tier, offset: int, status: GetMessageStatus, following: int
) -> None:
    tier.add(100, first=100)
    result = tier.get(offset)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (100, 200)


def test_queue_that_the_tier_does_not_have(tier: Tier) -> None:
    result = tier.get(5)
    assert (result.status, result.next_begin_offset) == (
        GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
        5,
    )


def test_queue_without_committed_messages(tier: Tier) -> None:
    tier.flat_files.get_or_create(TOPIC, 0).init_offset(0)
    result = tier.get(0)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_uncommitted_messages_are_not_served(tier: Tier) -> None:
    tier.add(10)
    tier.add(5, commit=False)
    assert offsets_of(tier.get(0)) == list(range(10))
    assert tier.get(10).status is GetMessageStatus.OFFSET_OVERFLOW_ONE


def test_count_below_one_is_refused(tier: Tier) -> None:
    with pytest.raises(Invalid, match="get of 0 messages"):
        tier.get(0, 0)


def test_messages_are_those_of_the_queue(tier: Tier) -> None:
    tier.add(20, tags=["TagA", "TagB"])
    result = tier.get(3, 4)
    assert offsets_of(result) == [3, 4, 5, 6]
    assert [message.tags for message in result.messages] == ["TagB", "TagA", "TagB", "TagA"]
    assert result.messages[0].tags_code == tags_code("TagB")
    assert [message.uniq_key for message in result.messages] == ["u3", "u4", "u5", "u6"]


def test_transfer_limit_is_bytes_and_lets_one_message_through(tier: Tier) -> None:
    tier.add(10, body=b"x" * 10_000)
    size = tier.get(0).messages[0].size
    fetcher = tier.new_fetcher(max_transfer_bytes_in_memory=2 * size + 1)
    result = fetcher.get_message("g", TOPIC, 0, 0, 32)
    assert (offsets_of(result), result.next_begin_offset) == ([0, 1, 2], 3)
    fetcher = tier.new_fetcher(max_transfer_bytes_in_memory=1)
    result = fetcher.get_message("g", TOPIC, 0, 4, 32)
    assert (offsets_of(result), result.next_begin_offset) == ([4], 5)


@pytest.mark.parametrize("block_count", [1, 2, 3, 4096])
@pytest.mark.parametrize("tags", [None, "TagA"])
def test_a_reader_may_ask_for_fewer_bytes(
    tmp_path: Path, block_count: int, tags: str | None
) -> None:
    tier = Tier(tmp_path, read_ahead_message_count_threshold=block_count)
    tier.add(9, body=b"x" * 1000, tags=["TagA"])
    size = tier.get(0, 1).messages[0].size
    wanted = TagFilter.parse(tags) if tags else None
    fetcher = tier.new_fetcher()
    for offset in range(9):  # into the cache: answers go over several blocks
        fetcher.get_message("g", TOPIC, 0, offset, 1)

    def count(max_bytes: int) -> int:
        request = GetRequest(TOPIC, 0, 2, 5, max_bytes, "g", wanted)
        result = fetcher.get(request)
        found = offsets_of(result)
        assert found == list(range(2, 2 + len(found)))
        assert result.next_begin_offset == 2 + len(found)
        assert asyncio.run(fetcher.get_async(request)).messages == result.messages
        return len(found)

    most = count(1 << 40)
    assert min(block_count, 5) <= most <= 5
    assert [count(size * 2 + more) for more in (-1, 0, size - 1, size)] == [
        min(n, most) for n in (1, 2, 2, 3)
    ]
    assert [count(few) for few in (-1, 0, size - 1)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("offset", "max_count", "tags", "found", "following"),
    [
        (100, 32, "1 || 2", 32, 164),
        (164, 32, "1 || 2", 18, 200),
        (100, 32, "0", 32, 163),
        (100, 32, "7", 0, 200),
    ],
)
def test_tag_filter_passes_what_it_refuses(
    tmp_path: Path, offset: int, max_count: int, tags: str, found: int, following: int
) -> None:
    tier = Tier(tmp_path)
    tier.add(100, first=100, tags=["0", "1"])
    result = tier.get(offset, max_count, TagFilter.parse(tags))
    assert (len(result.messages), result.next_begin_offset) == (found, following)
    assert (result.status is GetMessageStatus.FOUND) == bool(found)


def test_filter_around_the_cache_passes_the_batch(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_cache_enable=False)
    tier.add(100, first=100, tags=["0", "1"])
    result = tier.get(100, 32, TagFilter.parse("1"))
    assert (len(result.messages), result.next_begin_offset) == (16, 132)
    result = tier.get(100, 32, TagFilter.parse("7"))
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 132)


class KeyFilter:
    """A filter that needs the message itself."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:
        return True

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        return message.keys == ["k7"]


def test_filter_may_look_at_the_message(tier: Tier) -> None:
    tier.add(20)
    assert offsets_of(tier.get(0, 32, KeyFilter())) == [7]


# Blocks


def test_a_block_is_bounded_in_bytes_and_holds_one_message_at_least(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    file = tier.add(20, first=180)
    size = run(read_block(file, 180, 1, 1 << 20)).messages[0].size
    block = run(read_block(file, 180, 20, 8 * size + 10))
    assert (block.start, block.end, len(block.messages)) == (180, 188, 8)
    block = run(read_block(file, 180, 20, 1))
    assert (block.start, block.end, len(block.messages)) == (180, 181, 1)


def test_blocks_span_any_number_of_segments(tmp_path: Path) -> None:
    tier = Tier(tmp_path, commit_log_max_size_bytes=400, consume_queue_max_size_bytes=40)
    file = tier.add(30)
    assert len(file.commit_log.segments) > 3
    assert len(file.consume_queue.segments) == 15
    assert offsets_of(tier.get(0, 32)) == list(range(30))


def test_one_fetch_answers_all_pulls_of_its_block(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(320)
    assert len(tier.get(0, 320).messages) == 320
    offset = 0
    while offset < 320:
        offset = tier.get(offset).next_begin_offset
    assert tier.provider.reads_of(LOG) == 1
    assert tier.provider.reads_of(QUEUE) == 1
    assert tier.fetcher.cache.stats == (11, 10, 320, 0)


def test_a_reader_of_single_messages_fetches_32(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(100)
    assert offsets_of(tier.get(0, 1)) == [0]
    assert tier.fetcher.cache.stats.fetched_messages == 32
    for offset in range(32):
        assert offsets_of(tier.get(offset, 1)) == [offset]
    assert tier.provider.reads_of(LOG) == 1


def test_a_pull_goes_on_in_the_next_cached_block(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(100)
    tier.get(32, 1)
    tier.get(0, 1)
    assert offsets_of(tier.get(20, 30)) == list(range(20, 50))
    assert tier.provider.reads_of(LOG) == 2


def test_fetches_never_overlap_cached_blocks(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)
    tier.get(100, 1)
    tier.get(0, 150)
    assert tier.fetcher.cache.stats.fetched_messages == 32 + 100


def test_a_window_without_a_match_is_passed_without_reading_it_again(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_message_count_threshold=64)
    tier.add(300, tags=["no"] * 299 + ["yes"])
    wanted = TagFilter.parse("yes")
    offset, calls = 0, 0
    while True:
        result = tier.get(offset, 32, wanted)
        calls += 1
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
        if result.status is GetMessageStatus.FOUND:
            break
    assert (offsets_of(result), calls) == ([299], 5)
    assert tier.provider.reads_of(LOG) == 5
    # Again, now cached: as fast forward, and nothing is read.
    offset = 0
    while tier.get(offset, 32, wanted).status is not GetMessageStatus.FOUND:
        offset = tier.get(offset, 32, wanted).next_begin_offset
    assert tier.provider.reads_of(LOG) == 5


def test_defect_d12_a_full_cache_is_read_around(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_cache_size_bytes=1_200_000)
    for queue_id in range(3):
        tier.add(2000, queue_id=queue_id)
    # Bytes are compared with bytes: one large unread block leaves no room.
    assert offsets_of(tier.get(0, 1, TagFilter.parse("TagA"))) == [0]
    assert tier.fetcher.cache.block_count == 1
    for queue_id in (1, 2):
        for offset in (0, 32, 64):
            result = tier.get(offset, 32, queue_id=queue_id)
            assert offsets_of(result) == list(range(offset, offset + 32))
    assert tier.fetcher.cache.stats.fetched_messages == 2000
    # Its reader is not disturbed, and when that one is done there is room again.
    offset = 1
    while offset < 2000:
        offset = tier.get(offset, 32).next_begin_offset
    assert tier.provider.reads_of(LOG) == 7
    tier.get(96, 32, queue_id=1)
    assert tier.fetcher.cache.stats.fetched_messages == 2000 + 32


def test_blocks_are_cut_to_the_room_that_the_cache_has(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_cache_size_bytes=500_000)
    tier.add(4000)
    offset = 0
    while offset < 4000:
        offset = tier.get(offset, 32).next_begin_offset
        assert tier.fetcher.cache.size_bytes <= 500_000
    assert tier.fetcher.cache.stats.fetched_messages == 4000
    assert tier.fetcher.cache.stats.wasted_messages == 0


def test_without_room_for_one_answer_nothing_is_cached(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_cache_size_bytes=300_000)
    tier.add(100)
    assert offsets_of(tier.get(0, 32)) == list(range(32))
    assert tier.fetcher.cache.block_count == 0


def test_room_for_just_one_answer_is_enough_to_cache(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_cache_size_bytes=300_000)
    tier.add(100)
    room_bytes = tier.fetcher.cache.room_bytes()
    for more, blocks in ((1, 0), (0, 1)):
        tier.new_fetcher(max_transfer_bytes_in_memory=room_bytes + more)
        assert offsets_of(tier.get(0, 32)) == list(range(32))
        assert tier.fetcher.cache.block_count == blocks


def test_new_messages_behind_a_cached_block_are_found(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(10)
    assert tier.get(0).next_begin_offset == 10
    tier.add(10)
    result = tier.get(5)
    assert (offsets_of(result), result.max_offset) == (list(range(5, 20)), 20)
    assert offsets_of(tier.get(10)) == list(range(10, 20))


def test_a_small_cached_block_makes_no_answer_short(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(40, tags=("TagA", "TagB"))
    assert offsets_of(tier.get(0, 4)) == [0, 1, 2, 3]
    assert offsets_of(tier.get(1, 4)) == [1, 2, 3, 4]
    assert offsets_of(tier.get(0, 4, TagFilter.parse("TagA"))) == [0, 2, 4, 6]


def test_a_get_goes_through_two_windows_at_most_however_much_is_cached(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_message_count_threshold=64)
    tier.add(640, tags=["no"])
    wanted = TagFilter.parse("yes")
    offset = 0
    while offset < 640:
        offset = tier.get(offset, 32, wanted).next_begin_offset
    assert 0 < tier.get(0, 32, wanted).next_begin_offset <= 128


def test_what_expires_while_a_get_goes_on_is_not_passed(tmp_path: Path) -> None:
    """A get does not skip messages that expire in the tier during the get, because the local store
    may still have them."""
    tier = Tier(tmp_path)
    tier.add(10)
    tier.get(0)
    tier.add(10)
    tier.file().skip_to(50)
    tier.add(10)
    expired = tier.file().consume_queue.segments[-1].begin_ms

    class Expiring:
        def is_matched_by_consume_queue(self, _: object) -> bool:
            tier.file().expire(expired)
            return True

        def is_matched_by_commit_log(self, _: object) -> bool:
            return True

    result = tier.get(5, 32, Expiring())
    assert (offsets_of(result), result.next_begin_offset) == ([5, 6, 7, 8, 9], 10)
    assert tier.get(10).status is GetMessageStatus.OFFSET_TOO_SMALL


def test_a_queue_made_again_is_not_answered_from_the_old_one(tier: Tier) -> None:
    tier.add(10, body=b"old")
    tier.get(0)
    tier.flat_files.destroy(TOPIC, 0)
    assert tier.get(0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    tier.add(10, body=b"new")
    assert bytes(tier.get(0).messages[0].body) == b"new"


# Bad data


def corrupt_record(tier: Tier, offset: int, position: int, value: bytes) -> None:
    unit = run(tier.file().read_units(offset, 1))[0]
    at = int(unit["physical_offset"]) + position
    tier.provider.content(LOG)[at : at + len(value)] = value


def corrupt_unit(tier: Tier, offset: int, layout: str, position: int, value: int) -> None:
    struct.pack_into(layout, tier.provider.content(QUEUE), offset * 20 + position, value)


@pytest.mark.parametrize("bad", [0, 2, 5])
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\x7f\xff\xff\xff"),
        (0, b"\0\0\0\0"),
        (4, b"\0\0\0\0"),
        (12, b"\0\0\0\x09"),
        (20, b"\0\0\0\0\0\0\0\x63"),
    ],
    ids=["size", "zero size", "magic", "queue id", "queue offset"],
)
def test_defect_d09_a_bad_record_never_shifts_offsets(
    tier: Tier, bad: int, position: int, value: bytes
) -> None:
    tier.add(6)
    corrupt_record(tier, bad, position, value)
    good = [offset for offset in range(6) if offset != bad]
    result = tier.get(0)
    assert [m.uniq_key for m in result.messages] == [f"u{offset}" for offset in good]
    assert offsets_of(result) == good
    assert result.next_begin_offset == 6
    assert tier.metrics.value(BAD_MESSAGES, topic=TOPIC, queue_id=0) == 1
    [left_out] = tier.fetcher.unreadable.list_left_out()
    assert f"{TOPIC}, queue 0: consumers skip 1 damaged messages" in left_out
    assert left_out.endswith(f"of the queue offsets {bad} to {bad}")
    # Read again from each offset, one by one: each good message is at its own.
    for offset in good:
        result = tier.get(offset, 1)
        assert (offsets_of(result), result.next_begin_offset) == ([offset], offset + 1)


@pytest.mark.parametrize("bad", [0, 2, 5])
@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [
        (">q", 0, -1),
        (">q", 0, 2**63 - 1),
        (">q", 0, 1),
        (">i", 8, 0),
        (">i", 8, -5),
        (">i", 8, 2**31 - 1),
        (">i", 8, 50),
    ],
)
def test_defect_d09_a_bad_unit_costs_its_own_message_only(
    tier: Tier, bad: int, layout: str, position: int, value: int
) -> None:
    tier.add(6)
    corrupt_unit(tier, bad, layout, position, value)
    good = [offset for offset in range(6) if offset != bad]
    result = tier.get(0)
    assert offsets_of(result) == good
    assert result.next_begin_offset == 6


@pytest.mark.parametrize("is_checked", [True, False])
def test_bodies_are_checked_when_the_key_says_so(tmp_path: Path, is_checked: bool) -> None:
    tier = Tier(tmp_path, crc_check_enable=is_checked)
    tier.add(6)
    corrupt_record(tier, 2, 100, b"?")
    assert offsets_of(tier.get(0)) == ([0, 1, 3, 4, 5] if is_checked else list(range(6)))


def test_a_unit_that_points_at_another_message_is_not_served(tier: Tier) -> None:
    tier.add(6)
    first = run(tier.file().read_units(0, 1))[0]
    corrupt_unit(tier, 3, ">q", 0, int(first["physical_offset"]))
    assert offsets_of(tier.get(0)) == [0, 1, 2, 4, 5]


def test_nothing_but_bad_messages_is_passed(tier: Tier) -> None:
    tier.add(3)
    for offset in range(3):
        corrupt_record(tier, offset, 4, b"\0\0\0\0")
    result = tier.get(0)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 3)


def test_the_first_copy_of_a_repeated_upload_is_read_over(tier: Tier) -> None:
    # A crash between commit log and consume queue: the messages are uploaded again behind.
    file = tier.add(3)
    records = bytes(run(file.read_commit_log(0, file.commit_log_commit_offset)))
    assert file.commit_log.append(records, 3).name == "SUCCESS"
    assert file.commit_log.commit()
    tier.add(3)
    assert offsets_of(tier.get(0)) == list(range(6))


def test_messages_far_apart_are_read_apart(tier: Tier) -> None:
    file = tier.add(3)
    for _ in range(3):
        assert file.commit_log.append(bytes(1 << 20)).name == "SUCCESS"
        assert file.commit_log.commit()
    tier.add(3)
    assert offsets_of(tier.get(0)) == list(range(6))
    assert tier.fetcher.cache.size_bytes < 1 << 20


@pytest.mark.parametrize("points_at_coda", [True, False])
def test_a_coda_is_skipped(tier: Tier, points_at_coda: bool) -> None:
    file = tier.add(2)
    coda = struct.pack(">iIq", 16, 0xCBD43194, 0)
    assert file.commit_log.append(coda).name == "SUCCESS"
    tier.add(1)
    if points_at_coda:
        unit = run(file.read_units(2, 1))[0]
        corrupt_unit(tier, 2, ">q", 0, int(unit["physical_offset"]) - 16)
    assert offsets_of(tier.get(0)) == [0, 1, 2]


def test_defect_d16_a_short_segment_is_an_error_never_zeros(tier: Tier) -> None:
    tier.add(10)
    del tier.provider.content(LOG)[-5:]
    found: list[int] = []
    result = tier.get(0)
    while result.messages:
        found += offsets_of(result)
        result = tier.get(result.next_begin_offset)
    assert found == list(range(9))
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 9)
    assert tier.metrics.value(READ_ERRORS, topic=TOPIC, kind="Corrupt") > 0


def test_a_backend_that_is_down_means_ask_again(tier: Tier) -> None:
    tier.add(10)
    tier.provider.is_down = True
    result = tier.get(4)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 4)
    assert not result.messages
    tier.provider.is_down = False
    assert offsets_of(tier.get(4)) == list(range(4, 10))


def test_a_backend_that_is_down_between_two_reads_hides_no_message(tier: Tier) -> None:
    """A get skips no messages if the backend fails between its two reads. An invalid position in a
    unit makes the get read twice."""
    tier.add(20)
    tier.add(1, body=bytes(2 << 20))
    tier.add(20)
    tier.new_fetcher(
        max_transfer_bytes_in_memory=4 << 20,
        read_ahead_cache_enable=tier.config.read_ahead_cache_enable,
    )
    tier.provider.content(QUEUE)[20 * 20 : 20 * 20 + 8] = struct.pack(">q", -1)
    tier.provider.reads.clear()
    tier.provider.on_read = fail = FailingRead(tier, 2)
    result = tier.get(0)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 0)
    assert fail.count >= 2
    tier.provider.on_read = lambda: None
    result = tier.get(0)
    assert result.next_begin_offset >= 32
    assert offsets_of(result) == [n for n in range(result.next_begin_offset) if n != 20]


class FailingRead:
    """Makes commit log reads fail, starting with read number `first` (from 1)."""

    def __init__(self, tier: Tier, number: int) -> None:
        self._tier = tier
        self._number = number
        self.count = 0

    def __call__(self) -> None:
        self.count = self._tier.provider.reads_of(LOG)
        if self.count >= self._number and self._tier.provider.reads[-1].type is LOG:
            raise Unavailable("the backend is down")


def test_a_hole_is_passed_to_its_end(tier: Tier) -> None:
    file = tier.add(10)
    file.skip_to(50)
    tier.add(10)
    assert offsets_of(tier.get(5)) == list(range(5, 10))
    result = tier.get(10)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 50)
    assert offsets_of(tier.get(30)) in ([], list(range(50, 60)))
    assert tier.metrics.value(BAD_MESSAGES, topic=TOPIC, queue_id=0) == 0
    assert offsets_of(tier.get(50)) == list(range(50, 60))


def test_expired_messages_are_too_small(tier: Tier) -> None:
    file = tier.add(100, step_ms=1000)
    file.commit_log.roll()
    tier.add(100, step_ms=1000)
    file.expire(file.commit_log.segments[1].begin_ms)
    result = tier.get(0)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 100)
    assert offsets_of(tier.get(100))[0] == 100


def test_defect_d26_units_of_an_expired_commit_log_part_are_skipped(tmp_path: Path) -> None:
    tier = Tier(tmp_path, commit_log_max_size_bytes=2000)
    file = tier.add(30, step_ms=1000)
    expired = file.commit_log.segments[1].base_offset
    file.commit_log.expire(file.commit_log.segments[1].begin_ms)
    assert file.commit_log_min_offset == expired
    block = run(read_block(file, 0, 30, 1 << 20))
    assert block.messages[0].physical_offset == expired
    assert list(block.offsets) == list(range(block.offsets[0], 30))


# Concurrency


def test_readers_of_one_cold_block_share_one_fetch(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)
    everybody = threading.Barrier(8)
    results: list[GetMessageResult] = []

    def read() -> None:
        everybody.wait()
        results.append(tier.get(0))

    release = threading.Event()
    tier.provider.on_read = lambda: release.wait(10)
    opener = threading.Timer(0.02, release.set)
    opener.start()
    run_threads(8, read)
    assert tier.provider.reads_of(LOG) == 1
    assert all(result.status is GetMessageStatus.FOUND for result in results)


def test_readers_that_waited_share_the_error_too(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)
    tier.provider.is_down = True
    everybody = threading.Barrier(4)
    first_read = threading.Event()
    statuses = []

    def read() -> None:
        everybody.wait()
        statuses.append(tier.get(0).status)

    tier.provider.on_read = lambda: first_read.wait(0.02)
    run_threads(4, read)
    assert statuses == [GetMessageStatus.OFFSET_FOUND_NULL] * 4


def test_async_get_answers_like_the_blocking_one(tier: Tier) -> None:
    tier.add(100, first=100, tags=["0", "1"])
    cases = [
        (offset, count, message_filter)
        for offset in (0, 100, 131, 180, 199, 200, 205)
        for count in (1, 16, 32)
        for message_filter in (None, TagFilter.parse("1"))
    ]

    async def read_all() -> list[GetMessageResult]:
        return [
            await tier.fetcher.get_message_async("g", TOPIC, 0, offset, count, message_filter)
            for offset, count, message_filter in cases
        ]

    found = asyncio.run(read_all())
    tier.new_fetcher()
    for case, result in zip(cases, found, strict=True):
        expected = tier.get(*case)
        assert offsets_of(result) == offsets_of(expected)
        assert (result.status, result.next_begin_offset, result.min_offset, result.max_offset) == (
            expected.status,
            expected.next_begin_offset,
            expected.min_offset,
            expected.max_offset,
        )


def test_coroutines_of_one_cold_block_share_one_fetch(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)

    async def read_all() -> list[GetMessageResult]:
        return await asyncio.gather(
            *(tier.fetcher.get_message_async("g", TOPIC, 0, 5 * n, 32) for n in range(6))
        )

    results = asyncio.run(read_all())
    assert [offsets_of(result)[0] for result in results] == [0, 5, 10, 15, 20, 25]
    assert tier.provider.reads_of(LOG) == 1


def test_a_reader_that_gives_up_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)
    release = threading.Event()
    tier.provider.on_read = lambda: release.wait(10)

    async def read_all() -> list[GetMessageResult | BaseException]:
        get = tier.fetcher.get_message_async
        leader = asyncio.ensure_future(get("g", TOPIC, 0, 0, 32))
        followers = [asyncio.ensure_future(get("g", TOPIC, 0, 32, 32)) for _ in range(3)]
        await asyncio.sleep(0.01)
        leader.cancel()
        followers[0].cancel()
        await asyncio.sleep(0.01)
        release.set()
        return await asyncio.gather(leader, *followers, return_exceptions=True)

    leader, gone, *others = asyncio.run(read_all())
    assert isinstance(leader, asyncio.CancelledError)
    assert isinstance(gone, asyncio.CancelledError)
    answers = [result for result in others if not isinstance(result, BaseException)]
    assert len(answers) == len(others)
    assert [offsets_of(result)[0] for result in answers] == [32, 32]


def test_reads_of_coroutines_are_bounded(tmp_path: Path) -> None:
    tier = Tier(tmp_path, max_pending_limit=4)
    for queue_id in range(6):
        tier.add(10, queue_id=queue_id)
    release = threading.Event()
    tier.provider.on_read = lambda: release.wait(10)

    async def read_all() -> list[GetMessageStatus]:
        get = tier.fetcher.get_message_async
        readers = [asyncio.ensure_future(get("g", TOPIC, queue, 0, 32)) for queue in range(6)]
        await asyncio.sleep(0.01)
        release.set()
        return [result.status for result in await asyncio.gather(*readers)]

    statuses = asyncio.run(read_all())
    assert statuses.count(GetMessageStatus.FOUND) == 4
    assert statuses.count(GetMessageStatus.OFFSET_FOUND_NULL) == 2
    assert tier.metrics.value(READ_ERRORS, topic=TOPIC, kind="Busy") == 2
    assert offsets_of(tier.get(0, queue_id=5)) == list(range(10))


def test_a_blocking_get_inside_the_event_loop_never_waits_for_its_own_loop(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add(200)

    async def read_all() -> tuple[GetMessageResult, GetMessageResult]:
        leader = asyncio.ensure_future(tier.fetcher.get_message_async("g", TOPIC, 0, 0, 32))
        await asyncio.sleep(0)
        blocking = tier.get(32)
        return await leader, blocking

    with ThreadPoolExecutor(1) as pool:
        leader, blocking = pool.submit(lambda: asyncio.run(read_all())).result(timeout=30)
    assert offsets_of(leader)[0] == 0
    assert offsets_of(blocking)[0] == 32


def test_every_get_is_measured(tier: Tier) -> None:
    tier.add(10)
    tier.get(0)
    names = {(name, dict(labels).get("operation")) for name, labels, _ in tier.metrics.snapshot()}
    assert ("rocketmq_tiered_store_api_latency", "get_message") in names
