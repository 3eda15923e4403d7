"""Tests of tiered index files (`docs/formats/tiered-index.md`)."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tests.kit.index_chains import put_item, unpack_item, walk_tiered_chain
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.index import tiered as ti
from tieredstore.message.index.chains import link_previous

SLOTS, MAX_ITEMS, BEGIN = 7, 50, 1_700_000_000_000


def new_file(max_items: int = MAX_ITEMS) -> bytearray:
    data = bytearray(ti.unsealed_size(SLOTS, max_items))
    data[: ti.HEADER_SIZE] = ti.pack_header(ti.IndexHeader(BEGIN))
    return data


def put(data: bytearray | memoryview, hashes: list[int]) -> ti.IndexHeader:
    count = len(hashes)
    return ti.put_items(
        data,
        SLOTS,
        np.array(hashes, dtype=np.int32),
        1,
        2,
        np.arange(count) * 100,
        100,
        np.full(count, BEGIN + 5000),
    )


def test_a_file_takes_one_item_less_than_it_has_room_for() -> None:
    data = new_file(20)
    header = put(data, [3] * 19)
    assert (header.items, header.magic) == (19, ti.MAGIC_END)
    before = bytes(data)
    with pytest.raises(Invalid, match="expected room for 1 items, found 0"):
        put(data, [3])
    with pytest.raises(Invalid, match="expected room for 1 items, found 0"):
        put_item(data, SLOTS, 3, 1, 2, 0, 100, BEGIN)
    assert data == before


def test_a_batch_that_does_not_fit_is_not_put_at_all() -> None:
    data = new_file(20)
    before = bytes(data)
    with pytest.raises(Invalid, match="expected room for 20 items, found 19"):
        put(data, [3] * 20)
    assert data == before
    assert put(data, []).items == 0


def test_equal_slots_in_one_batch_are_chained_in_order() -> None:
    data = new_file()
    header = put(data, [7, 0, 8, 7, 14, 0, 7])
    assert header.slots_used == 2
    assert header.end_timestamp_ms == BEGIN + 5000
    assert [item.offset for item in walk_tiered_chain(data, SLOTS, 7)] == [600, 300, 0]
    assert [item.offset for item in walk_tiered_chain(data, SLOTS, 0)] == [500, 100]
    assert [item.offset for item in walk_tiered_chain(data, SLOTS, 14)] == [400]
    assert list(walk_tiered_chain(data, SLOTS, 21)) == []


def test_defect_d13_hash_zero_has_a_slot_like_any_other() -> None:
    data = new_file()
    put(data, [0])
    [item] = walk_tiered_chain(data, SLOTS, 0)
    assert item.size == 100


def test_a_slot_that_a_crash_left_ahead_of_the_header_counts_as_empty() -> None:
    """A slot that refers to an item beyond the header's count is treated as empty. A crash between
    the two writes leaves such a slot."""
    for one_by_one in (True, False):
        data = new_file()
        ti.slots_view(data, SLOTS)[3] = 1
        if one_by_one:
            put_item(data, SLOTS, 3, 1, 2, 0, 100, BEGIN)
        else:
            put(data, [3])
        [item] = walk_tiered_chain(data, SLOTS, 3)
        assert item.previous == 0


def test_a_damaged_chain_ends() -> None:
    data = new_file()
    put(data, [3, 3, 3])
    for link in (3, 2, 40, -1, 2**31 - 1):
        ti.items_view(data, SLOTS, 4)["previous"][2] = link
        assert len(list(walk_tiered_chain(data, SLOTS, 3))) == 2
    ti.slots_view(data, SLOTS)[3] = 4
    assert list(walk_tiered_chain(data, SLOTS, 3)) == []


@pytest.mark.parametrize(
    ("millis", "seconds"),
    [
        (0, 0),
        (999, 0),
        (1000, 1),
        (-1, 0),
        (-999, 0),
        (-1000, -1),
        (-1999, -1),
        (2**31 * 1000, 2**31 - 1),
        (-(2**31) * 1000 - 1000, -(2**31)),
    ],
)
def test_times_are_whole_seconds_cut_toward_zero(millis: int, seconds: int) -> None:
    assert ti.time_diff_seconds(BEGIN + millis, BEGIN).tolist() == [seconds]
    data = new_file()
    put_item(data, SLOTS, 3, 1, 2, 0, 100, BEGIN + millis)
    assert unpack_item(data, SLOTS, 1).time_diff_seconds == seconds


def test_i06_times_do_not_wrap() -> None:
    extremes = [-(2**63), 2**63 - 1]
    for begin in (0, BEGIN, 2**63 - 1, -(2**63)):
        expected = [
            0 if time == begin else (2**31 - 1 if time > begin else -(2**31)) for time in extremes
        ]
        assert ti.time_diff_seconds(extremes, begin).tolist() == expected


def test_headers() -> None:
    header = ti.IndexHeader(1, 2, 3, 4, ti.MAGIC_END)
    packed = ti.pack_header(header)
    assert packed.hex() == "bcc502850000000000000001000000000000000200000003" + "00000004"
    assert ti.unpack_header(packed) == header
    for bad, what in (
        (packed[:-1], "expected 28 bytes, found 27"),
        (b"\0" + packed[1:], "magic at 0"),
        (packed[:20] + b"\xff" + packed[21:], "header at 20"),
        (packed[:24] + b"\xff" + packed[25:], "header at 20"),
    ):
        with pytest.raises(Corrupt, match=what):
            ti.unpack_header(bad)


def test_slots_are_inferred_from_the_size_of_a_compacted_file() -> None:
    assert ti.infer_slots(ti.compacted_size(5_000_000, 20_000_000), 20_000_000) == 5_000_000
    assert ti.infer_slots(ti.compacted_size(4, 5) + 1, 5) is None
    assert ti.infer_slots(ti.compacted_size(4, 5), 9) is None
    assert ti.infer_slots(28, 0) is None
    assert ti.infer_slots(200, -1) is None
    assert ti.unsealed_size(5_000_000, 20_000_000) == 680_000_028


def test_compaction_of_a_file_that_is_cut_is_corrupt() -> None:
    data = new_file()
    put(data, [1, 2, 3])
    with pytest.raises(Corrupt, match="expected 3 items"):
        list(ti.compact(data[: ti.item_position(SLOTS, 4) - 1], SLOTS))


def test_compaction_beyond_31_bits_is_invalid() -> None:
    data = new_file()
    data[: ti.HEADER_SIZE] = ti.pack_header(ti.IndexHeader(BEGIN, 0, 1, 80_000_000))
    big = mmap.mmap(-1, ti.item_position(SLOTS, 80_000_001))  # never touched, so never there
    big[: len(data)] = bytes(data)
    with pytest.raises(Invalid, match="at most 2147483647 bytes"):
        list(ti.compact(memoryview(big), SLOTS))


def test_slots_and_items_outside_the_buffer_are_corrupt() -> None:
    data = new_file()
    for position in (-1, len(data) - 7):
        with pytest.raises(Corrupt, match=f"index slot at {position}"):
            ti.unpack_compacted_slot(data, position)
    for number in (0, -1, MAX_ITEMS, 2**31):
        with pytest.raises(Corrupt, match=f"index item {number}"):
            unpack_item(data, SLOTS, number)
    with pytest.raises(Corrupt, match="slots"):
        list(walk_tiered_chain(data[:40], SLOTS, 6))


def test_values_that_do_not_fit_are_invalid() -> None:
    with pytest.raises(Invalid, match="index item 1"):
        put_item(new_file(), SLOTS, 3, 1, 2, 2**63, 100, BEGIN)


def test_no_view_outlives_a_call_so_mapped_files_can_be_closed() -> None:
    data = new_file()
    mapped = mmap.mmap(-1, len(data))
    view = memoryview(mapped)
    view[:] = data
    put(view, [1, 2, 3] * 10)
    put_item(view, SLOTS, 1, 1, 1, 1, 100, BEGIN)
    assert len(list(walk_tiered_chain(view, SLOTS, 1))) == 11
    assert len(b"".join(ti.compact(view, SLOTS))) == ti.compacted_size(SLOTS, 31)
    view.release()
    mapped.close()


def test_link_previous_gives_what_put_wrote() -> None:
    data = new_file()
    hashes = [3, 10, 3, 4, 17, 4, 3, 1]
    put(data, hashes[:3])
    heads = ti.slots_view(data, SLOTS).copy()
    put(data, hashes[3:])
    slot_ids = np.array(hashes[3:], dtype=np.int64) % SLOTS
    previous = link_previous(heads, slot_ids, np.arange(4, 9, dtype=np.int32))
    assert previous.tolist() == ti.items_view(data, SLOTS, 9)["previous"][4:].tolist()
    assert link_previous(heads, slot_ids[:0], np.zeros(0, np.int32)).tolist() == []
