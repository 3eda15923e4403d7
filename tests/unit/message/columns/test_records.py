"""Tests of decoding many records at once (`docs/formats/record.md`)."""

from __future__ import annotations

import mmap
import struct

import numpy as np
import pytest

from tests.kit.record_forms import record_positions
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.records import (
    check_bodies,
    gather_headers,
    index_keys,
    keys_to_index,
    record_columns,
    rewrite_physical_offsets,
    store_timestamps,
)
from tieredstore.message.columns.walk import SCALAR_LIMIT, Stop, walk_records
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import MAGIC_V1
from tieredstore.message.record import blank_record, decode_record


def log(sizes: list[int]) -> tuple[bytes, list[int]]:
    """Return records with bodies of the given sizes, and their positions."""
    records: list[bytes] = []
    positions: list[int] = []
    at = 0
    for number, size in enumerate(sizes):
        positions.append(at)
        record = encode_record(Message("T", bytes(size)), number, at, number * 10)
        records.append(record)
        at += len(record)
    return b"".join(records), positions


RUNS = {
    "one": [5],
    "all equal": [7] * 300,
    "all different": list(range(200)),
    "runs": [5] * 40 + [6] * 3 + [5] * 100 + [9] + [5] * 2,
    "a long run": [3] * 6000 + [4],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_walk_finds_every_record(name: str) -> None:
    data, positions = log(RUNS[name])
    walk = walk_records(data)
    assert walk.positions.tolist() == positions
    assert (walk.next_position, walk.stop) == (len(data), Stop.END)
    assert record_positions(data).tolist() == positions
    middle = positions[len(positions) // 2]
    assert record_positions(data, middle).tolist() == positions[len(positions) // 2 :]
    assert record_positions(data, 0, middle).tolist() == positions[: len(positions) // 2]


@pytest.mark.parametrize(
    ("tail", "stop"),
    [
        (b"", Stop.END),
        (blank_record(64) + bytes(56), Stop.BLANK),
        (bytes(64), Stop.EMPTY),
        (bytes(8), Stop.EMPTY),
        (bytes(7), Stop.CUT),
        (log([5])[0][:-1], Stop.CUT),
        (log([5])[0][:9], Stop.CUT),
        (b"x" * 64, Stop.BAD),
        (struct.pack(">iI", 90, MAGIC_V1) + bytes(100), Stop.BAD),
        (struct.pack(">iI", -1, MAGIC_V1) + bytes(100), Stop.BAD),
    ],
)
def test_a_walk_says_why_it_ends(tail: bytes, stop: Stop) -> None:
    data, positions = log([5] * 50)
    walk = walk_records(data + tail)
    assert walk.positions.tolist() == positions
    assert (walk.next_position, walk.stop) == (len(data), stop)
    if stop in (Stop.CUT, Stop.BAD):
        with pytest.raises(Corrupt, match=f"record at {len(data)}: ") as raised:
            record_positions(data + tail)
        assert raised.value.offset == len(data)
    else:
        assert record_positions(data + tail).tolist() == positions


def test_a_record_of_the_guessed_size_behind_a_wrong_one_does_not_count() -> None:
    data, positions = log([5] * 100)
    broken = bytearray(data)
    broken[positions[60] : positions[60] + 4] = struct.pack(">i", 91)
    walk = walk_records(broken)
    assert walk.positions.tolist() == positions[:61]
    assert (walk.next_position, walk.stop) == (positions[60] + 91, Stop.BAD)


def test_ranges_outside_the_buffer_are_invalid() -> None:
    data, _ = log([5])
    for start, end in ((-1, None), (len(data) + 1, None), (0, len(data) + 1), (5, 4)):
        with pytest.raises(Invalid, match="records from"):
            walk_records(data, start, end)
    assert walk_records(b"").positions.tolist() == []


@pytest.mark.parametrize("bad", [[-1], [0, -50], [2], [2**40], [0, 2**62]])
def test_positions_outside_the_buffer_are_corrupt(bad: list[int]) -> None:
    data = bytearray(log([0])[0])
    for call in (
        lambda: gather_headers(data, np.array(bad)),
        lambda: record_columns(data, np.array(bad)),
        lambda: store_timestamps(data, np.array(bad)),
        lambda: rewrite_physical_offsets(data, np.array(bad), [0] * len(bad)),
    ):
        with pytest.raises(Corrupt, match="record at"):
            call()
    assert data == log([0])[0]


def test_the_first_bad_row_is_named() -> None:
    data, positions = log([5] * 30)
    for field, value in ((84, -1), (84, 1 << 30), (0, 1 << 30), (4, 7)):
        broken = bytearray(data)
        for row in (17, 20):
            struct.pack_into(">i", broken, positions[row] + field, value)
        with pytest.raises(Corrupt, match=f"record at {positions[17]}:"):
            record_columns(broken, np.array(positions))


def test_headers_are_the_first_88_bytes() -> None:
    data, positions = log([5] * 3)
    headers = gather_headers(data, np.array(positions))
    assert headers.dtype == columns.HEADER_DTYPE
    assert headers.tobytes() == b"".join(data[at : at + 88] for at in positions)


@pytest.mark.parametrize("count", [1, SCALAR_LIMIT - 1, SCALAR_LIMIT, 100])
def test_rewriting_touches_eight_bytes_of_each_record(count: int) -> None:
    data, positions = log([5] * count)
    offsets = [2**63 - 1 - number for number in range(count)]
    changed = bytearray(data)
    rewrite_physical_offsets(changed, np.array(positions), offsets)
    expected = bytearray(data)
    for at, offset in zip(positions, offsets, strict=True):
        expected[at + 28 : at + 36] = offset.to_bytes(8, "big")
        assert decode_record(changed, at).physical_offset == offset
    assert changed == expected
    with pytest.raises(Invalid, match=f"expected {count}, found {count + 1}"):
        rewrite_physical_offsets(changed, np.array(positions), [*offsets, 0])


def test_l06_a_flipped_body_byte_is_found_in_its_row() -> None:
    data, positions = log([5] * 20)
    broken = bytearray(data)
    broken[positions[7] + 88] ^= 1
    good = check_bodies(broken, record_columns(broken, np.array(positions)))
    assert np.flatnonzero(~good).tolist() == [7]


def test_keys_to_index_are_uniq_key_then_keys_each_once() -> None:
    assert keys_to_index(b"") == []
    assert keys_to_index(b"UNIQ_KEY\x01u\x02KEYS\x01a u  b a\x02") == ["u", "a", "b"]
    assert keys_to_index(b"UNIQ_KEY\x01 \x02KEYS\x01 \x02") == []
    assert keys_to_index(b"KEYS\x01old\x02KEYS\x01new\x02") == ["new"]
    data = encode_record(Message("T", b""), 0, 0, 0)
    data += encode_record(Message.create("T", b"", keys=["a", "b"]), 0, 0, 0)
    rows, keys = index_keys(data, record_columns(data, record_positions(data)))
    assert (rows.tolist(), keys) == ([1, 1], ["a", "b"])


def test_no_view_outlives_a_call_so_mapped_files_can_be_closed() -> None:
    data, positions = log([5] * 100)
    mapped = mmap.mmap(-1, len(data))
    view = memoryview(mapped)
    view[:] = data
    at = record_positions(view)
    assert at.tolist() == positions
    found = record_columns(view, at)
    check_bodies(view, found)
    index_keys(view, found)
    columns.topics(view, found)
    rewrite_physical_offsets(view, at, at)
    view.release()
    mapped.close()
