"""Tests of local index files (`docs/formats/local-index.md`)."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from tests.kit.index_chains import walk_local_chain
from tests.kit.units import lookup
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.index import local as li

SLOTS, MAX_ITEMS, BEGIN = 7, 400, 1_700_000_000_000
ALWAYS = (-(2**62), 2**62)


def new_file(max_items: int = MAX_ITEMS) -> bytearray:
    return bytearray(li.file_size(SLOTS, max_items))


def put(data: bytearray | memoryview, rows: list[tuple[int, int, int]]) -> int:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return li.put_items(data, SLOTS, columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2])


def test_a_file_for_400_items_takes_399() -> None:
    data = new_file()
    assert put(data, [(1, number, BEGIN) for number in range(500)]) == 399
    assert li.LocalIndexHeader.unpack(data).index_count == MAX_ITEMS
    before = bytes(data)
    assert put(data, [(1, 0, BEGIN)]) == 0
    assert not li.put_item(data, SLOTS, 1, 0, BEGIN)
    assert data == before


def test_a_file_with_no_room_takes_nothing() -> None:
    assert put(new_file(1), [(1, 0, BEGIN)]) == 0
    assert put(new_file(), []) == 0


def test_the_first_item_is_measured_against_the_begin_that_it_replaces() -> None:
    for put_two in (
        lambda data: put(data, [(1, 70, BEGIN), (1, 80, BEGIN + 2500)]),
        lambda data: [
            li.put_item(data, SLOTS, 1, 70, BEGIN),
            li.put_item(data, SLOTS, 1, 80, BEGIN + 2500),
        ],
    ):
        data = new_file()
        header = li.LocalIndexHeader(BEGIN - 9000, BEGIN - 9000, 5, 5)
        data[: li.HEADER_SIZE] = header.pack()
        put_two(data)
        second, first = walk_local_chain(data, SLOTS, 1)
        assert (first.seconds, second.seconds) == (9, 2)
        found = li.LocalIndexHeader.unpack(data)
        assert found == li.LocalIndexHeader(BEGIN, BEGIN + 2500, 70, 80, 1, 3)
        assert li.time_range_ms(found, first) == (BEGIN, BEGIN)
        assert li.time_range_ms(found, second) == (BEGIN + 2000, BEGIN + 2999)


def test_windows_lose_no_message_to_whole_seconds() -> None:
    data = new_file()
    times = [BEGIN, BEGIN + 999, BEGIN + 1000, BEGIN + 1999, BEGIN - 5000, BEGIN + 3000]
    put(data, [(1, number, time) for number, time in enumerate(times)])
    for number, time in enumerate(times):
        assert number in lookup(data, SLOTS, 1, time, time, 64)
    assert lookup(data, SLOTS, 1, BEGIN + 3000, BEGIN + 9000, 64) == [5]
    assert lookup(data, SLOTS, 1, BEGIN + 4000, BEGIN + 9000, 64) == []


def test_look_ups_are_newest_first_and_bounded() -> None:
    data = new_file()
    put(data, [(1 + number % 2 * 7, number, BEGIN) for number in range(10)])
    assert lookup(data, SLOTS, 1, *ALWAYS, 64) == [8, 6, 4, 2, 0]
    assert lookup(data, SLOTS, 8, *ALWAYS, 2) == [9, 7]
    assert lookup(data, SLOTS, 8, *ALWAYS, 0) == []
    assert lookup(data, SLOTS, 15, *ALWAYS, 64) == []


def test_far_times_are_held_and_found() -> None:
    data = new_file()
    times = [BEGIN, 2**63 - 1, -(2**63)]
    put(data, [(1, number, time) for number, time in enumerate(times)])
    assert [item.seconds for item in walk_local_chain(data, SLOTS, 1)] == [0, 2**31 - 1, 0]
    far = BEGIN + 2**31 * 1000 + 5
    assert lookup(data, SLOTS, 1, far, far, 64) == [1]
    scalar = new_file()
    for number, time in enumerate(times):
        li.put_item(scalar, SLOTS, 1, number, time)
    assert scalar == data


def test_a_file_without_begin_keeps_no_seconds() -> None:
    data = new_file()
    put(data, [(1, 0, 0), (1, 1, 5000)])
    scalar = new_file()
    li.put_item(scalar, SLOTS, 1, 0, 0)
    li.put_item(scalar, SLOTS, 1, 1, 5000)
    assert scalar == data
    assert [item.seconds for item in walk_local_chain(data, SLOTS, 1)] == [0, 0]


def test_a_damaged_chain_ends() -> None:
    data = new_file()
    put(data, [(1, number, BEGIN) for number in range(3)])
    link = li.HEADER_SIZE + SLOTS * li.SLOT_SIZE + 2 * li.ITEM_SIZE + 16
    for value in (3, 2, 40, -1, 2**31 - 1):
        data[link : link + 4] = value.to_bytes(4, "big", signed=True)
        assert len(list(walk_local_chain(data, SLOTS, 1))) == 2


def test_headers() -> None:
    assert li.LocalIndexHeader.unpack(bytes(40)) == li.LocalIndexHeader()
    assert (
        li.LocalIndexHeader(1, 2, 3, 4, 5, 6).pack().hex()
        == "".join(f"{value:016x}" for value in (1, 2, 3, 4)) + "0000000500000006"
    )
    with pytest.raises(Corrupt, match="expected 40 bytes, found 39"):
        li.LocalIndexHeader.unpack(bytes(39))
    with pytest.raises(Corrupt, match="header at 32"):
        li.LocalIndexHeader.unpack(bytes(36) + b"\xff\xff\xff\xff")


def test_sizes() -> None:
    assert li.file_size(5_000_000, 20_000_000) == 420_000_040


def test_files_too_short_for_their_slots_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="slots"):
        list(walk_local_chain(bytes(45), SLOTS, 6))


def test_values_that_do_not_fit_are_invalid() -> None:
    with pytest.raises(Invalid, match="index item 1"):
        li.put_item(new_file(), SLOTS, 1, 2**63, BEGIN)


def test_no_view_outlives_a_call_so_mapped_files_can_be_closed() -> None:
    mapped = mmap.mmap(-1, len(new_file()))
    view = memoryview(mapped)
    put(view, [(number, number, BEGIN) for number in range(50)])
    assert lookup(view, SLOTS, 7, *ALWAYS, 9) == [7]
    view.release()
    mapped.close()
