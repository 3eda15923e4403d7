"""Tests of index files: single puts, bulk puts and compaction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.index_chains import put_item, unpack_item, walk_tiered_chain
from tests.kit.strategies import I32, I64, corrupt_or_none
from tests.kit.units import lookup
from tieredstore.errors import Corrupt
from tieredstore.message.index import local as li
from tieredstore.message.index import tiered as ti

SLOTS = st.integers(1, 12)
HASHES = st.integers(0, 30) | st.integers(0, 2**31 - 1)
TIERED_ROWS = st.lists(st.tuples(HASHES, I32, I32, I64, I32, I64), max_size=60)
LOCAL_ROWS = st.lists(st.tuples(HASHES, I64, I64), max_size=60)
CUTS = st.lists(st.integers(1, 40), min_size=1)


def pieces(rows: list[tuple[int, ...]], cuts: list[int]) -> list[list[tuple[int, ...]]]:
    """Divide rows into pieces with the lengths in `cuts`, which are repeated until all rows are
    used."""
    found: list[list[tuple[int, ...]]] = []
    while rows:
        length = cuts[len(found) % len(cuts)]
        found.append(rows[:length])
        rows = rows[length:]
    return found


def new_tiered(slots: int, begin: int, count: int) -> bytearray:
    data = bytearray(ti.unsealed_size(slots, count + 1))
    data[: ti.HEADER_SIZE] = ti.pack_header(ti.IndexHeader(begin))
    return data


def put_tiered(data: bytearray, slots: int, rows: list[tuple[int, ...]]) -> None:
    columns = list(zip(*rows, strict=True))
    ti.put_items(
        data,
        slots,
        np.array(columns[0], dtype=np.int32),
        *(np.array(column, dtype=np.int64) for column in columns[1:]),
    )


@given(SLOTS, I64, TIERED_ROWS, CUTS)
def test_tiered_puts_of_many_equal_puts_of_one(
    slots: int, begin: int, rows: list[tuple[int, ...]], cuts: list[int]
) -> None:
    one_by_one = new_tiered(slots, begin, len(rows))
    at_once = bytearray(one_by_one)
    for key_hash, topic_id, queue_id, offset, size, time in rows:
        put_item(one_by_one, slots, key_hash, topic_id, queue_id, offset, size, time)
    for piece in pieces(rows, cuts):
        put_tiered(at_once, slots, piece)
    assert at_once == one_by_one
    newest_first: dict[int, list[int]] = {}
    for number, row in enumerate(rows, start=1):
        newest_first.setdefault(row[0], []).insert(0, number)
    for key_hash, numbers in newest_first.items():
        found = list(walk_tiered_chain(at_once, slots, key_hash))
        assert found == [unpack_item(at_once, slots, number) for number in numbers]


def compacted_by_chains(data: bytes | bytearray, slots: int) -> bytes:
    """Compact a file as Java does, slot by slot along the chains."""
    header = ti.unpack_header(data)
    table, items = b"", b""
    for slot in range(slots):
        start = ti.compacted_size(slots, 0) + len(items)
        number = int(ti.slots_view(data, slots)[slot])
        length = 0
        while number:
            at = ti.item_position(slots, number)
            items += bytes(data[at : at + ti.COMPACTED_ITEM_SIZE])
            length += ti.COMPACTED_ITEM_SIZE
            number = unpack_item(data, slots, number).previous
        table += start.to_bytes(4, "big") + length.to_bytes(4, "big")
    head = bytearray(ti.pack_header(header))
    head[:4] = ti.MAGIC_END.to_bytes(4, "big")
    return bytes(head) + table + items


@given(SLOTS, I64, TIERED_ROWS, st.integers(1, 70), st.integers(1, 600))
def test_compaction_by_sorting_equals_compaction_by_chains(
    slots: int, begin: int, rows: list[tuple[int, ...]], block_items: int, memory_bytes: int
) -> None:
    data = new_tiered(slots, begin, len(rows))
    if rows:
        put_tiered(data, slots, rows)
    blocks = list(ti.compact(data, slots, block_items=block_items, memory_bytes=memory_bytes))
    result = b"".join(blocks)
    assert result == compacted_by_chains(data, slots)
    assert len(result) == ti.compacted_size(slots, len(rows))
    assert ti.infer_slots(len(result), len(rows)) == slots
    assert all(len(block) <= block_items * ti.COMPACTED_ITEM_SIZE for block in blocks[2:])


@given(SLOTS, st.integers(-5, 2**62), I64, LOCAL_ROWS, st.integers(1, 70), CUTS)
def test_local_puts_of_many_equal_puts_of_one(
    slots: int,
    begin: int,
    begin_offset: int,
    rows: list[tuple[int, ...]],
    max_items: int,
    cuts: list[int],
) -> None:
    one_by_one = bytearray(li.file_size(slots, max_items))
    header = li.LocalIndexHeader(begin, begin, begin_offset, begin_offset)
    one_by_one[: li.HEADER_SIZE] = header.pack()
    at_once = bytearray(one_by_one)
    fitted = [li.put_item(one_by_one, slots, *row) for row in rows]
    put = 0
    for piece in pieces(rows, cuts):
        columns = np.array(piece, dtype=np.int64)
        hashes = columns[:, 0].astype(np.int32)
        put += li.put_items(at_once, slots, hashes, columns[:, 1], columns[:, 2])
    assert at_once == one_by_one
    assert put == sum(fitted) == min(len(rows), max_items - 1)


@given(SLOTS, st.lists(st.tuples(HASHES, st.integers(0, 9000)), min_size=1, max_size=60), st.data())
def test_local_look_ups_find_every_message_of_the_window(
    slots: int, keyed: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A query of a local index returns every message in the time window, even if the clock steps
    back. It may also return items that are at most one second outside the window. In addition,
    items of the file's first second match any earlier time."""
    base = 1_700_000_000_000
    file = bytearray(li.file_size(slots, 100))
    for offset, (key_hash, millis) in enumerate(keyed):
        assert li.put_item(file, slots, key_hash, offset, base + millis)
    key_hash = data.draw(st.sampled_from([row[0] for row in keyed]))
    begin = base + data.draw(st.integers(-10, 9010))
    end = begin + data.draw(st.integers(0, 5000))
    found = lookup(file, slots, key_hash, begin, end, 1000)
    assert found == sorted(found, reverse=True)
    wanted = [
        offset
        for offset, (other, millis) in enumerate(keyed)
        if other == key_hash and begin <= base + millis <= end
    ]
    assert set(wanted) <= set(found)
    first = base + keyed[0][1]
    for offset in set(found) - set(wanted):
        other, millis = keyed[offset]
        assert other == key_hash
        assert base + millis < first + 1000 or begin - 999 <= base + millis <= end + 999


@given(st.binary(max_size=300), SLOTS, HASHES)
def test_l06_any_bytes_as_an_index_file_are_read_or_corrupt(
    data: bytes, slots: int, key_hash: int
) -> None:
    for magic in (b"", ti.MAGIC_BEGIN.to_bytes(4, "big")):
        raw = magic + data[len(magic) :]
        for read in (
            lambda raw=raw: list(walk_tiered_chain(raw, slots, key_hash)),
            lambda raw=raw: list(ti.compact(raw, slots)),
            lambda raw=raw: lookup(raw, slots, key_hash, -(2**62), 2**62, 1000),
        ):
            error = corrupt_or_none(read)
            assert error is None or error.offset is not None


def test_the_oracle_is_java_s() -> None:
    """`compacted_by_chains`, with which the tests compare compacted files, gives the right result
    for a file that was computed by hand."""
    data = new_tiered(2, 1000, 3)
    put_tiered(data, 2, [(1, 0, 0, 0, 9, 1000), (3, 0, 0, 5, 9, 2000), (2, 0, 0, 7, 9, 3000)])
    result = compacted_by_chains(data, 2)
    offsets = np.frombuffer(result, ti.COMPACTED_ITEM_DTYPE, offset=ti.compacted_size(2, 0))
    assert offsets["offset"].tolist() == [7, 5, 0]
    with pytest.raises(Corrupt):
        list(ti.compact(result[:20], 2))
