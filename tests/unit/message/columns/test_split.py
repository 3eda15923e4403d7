"""Tests of splitting units and commit log bytes into messages (`docs/formats/consume-queue.md`)."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest

from tieredstore.message.columns.split import split_messages
from tieredstore.message.consume_queue import make_units
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import MAGIC_BLANK

COUNT = 10
BASE = 5000


def queue(base: int = BASE) -> tuple[npt.NDArray[np.void], bytes]:
    records = [
        encode_record(Message("T", bytes(number)), 100 + number, 0, 1) for number in range(COUNT)
    ]
    sizes = [len(record) for record in records]
    offsets = [base + sum(sizes[:number]) for number in range(COUNT)]
    return make_units(offsets, sizes, [number * 7 for number in range(COUNT)]), b"".join(records)


def offsets_of(units: npt.NDArray[np.void], data: bytes, base: int | None = None) -> list[int]:
    split = split_messages(units, data, buffer_offset=base)
    found = [message.queue_offset - 100 for message in split.messages]
    assert found == split.indexes.tolist()
    assert [message.tags_code for message in split.messages] == [7 * row for row in found]
    return found


def test_every_message_with_its_index_and_tags_code() -> None:
    units, data = queue()
    assert offsets_of(units, data) == list(range(COUNT))
    split = split_messages(units, data)
    assert split.is_complete
    assert split.units_seen == COUNT


def test_nothing_in_nothing_out() -> None:
    units, data = queue()
    for nothing in (split_messages(units[:0], data), split_messages(units, b"")):
        assert nothing.messages == []
        assert nothing.indexes.tolist() == []
        assert nothing.units_seen == 0


def test_messages_behind_the_end_are_left_for_the_next_read() -> None:
    units, data = queue()
    split = split_messages(units, data[:-1])
    assert split.indexes.tolist() == list(range(COUNT - 1))
    assert split.units_seen == COUNT - 1
    assert split.is_complete


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 91),
        ("size", 0),
        ("size", -5),
        ("physical_offset", BASE - 1),
        ("physical_offset", BASE + 3),
        ("physical_offset", -1),
        ("physical_offset", -(2**63)),
    ],
)
def test_defect_d09_a_bad_unit_does_not_shift_its_neighbours(field: str, value: int) -> None:
    units, data = queue()
    units[field][4] = value
    expected = [row for row in range(COUNT) if row != 4]
    assert offsets_of(units, data, BASE) == expected
    assert not split_messages(units, data, buffer_offset=BASE).is_complete


@pytest.mark.parametrize(("position", "value"), [(0, b"\0\0\0\x5b"), (4, b"\0\0\0\0")])
def test_defect_d09_a_bad_record_does_not_shift_its_neighbours(position: int, value: bytes) -> None:
    units, data = queue()
    at = int(units["physical_offset"][2]) - BASE + position
    broken = data[:at] + value + data[at + 4 :]
    assert offsets_of(units, broken) == [0, 1, *range(3, COUNT)]


@pytest.mark.parametrize("offset", [2**63 - 1, BASE + 2**31, BASE + 2**32])
def test_i06_an_offset_far_away_ends_the_read_and_does_not_wrap(offset: int) -> None:
    units, data = queue()
    units["physical_offset"][4] = offset
    assert offsets_of(units, data, BASE) == [0, 1, 2, 3]


@pytest.mark.parametrize("base", [0, 2**31 - 50, 2**32 - 50, 2**63 - 10_000])
def test_i06_bases_near_the_limits(base: int) -> None:
    units, data = queue(base)
    assert offsets_of(units, data) == list(range(COUNT))


@pytest.mark.parametrize("unit_at_coda", [True, False])
def test_a_coda_is_skipped_whether_the_unit_names_it_or_the_message(unit_at_coda: bool) -> None:
    units, data = queue()
    cut = int(units["physical_offset"][5]) - BASE
    coda = struct.pack(">iIq", 16, MAGIC_BLANK, 1)
    units["physical_offset"][5 if not unit_at_coda else 6 :] += 16
    assert offsets_of(units, data[:cut] + coda + data[cut:]) == list(range(COUNT))


def test_a_coda_at_the_end_of_the_buffer_ends_the_read() -> None:
    units, data = queue()
    cut = int(units["physical_offset"][9]) - BASE
    coda = struct.pack(">iIq", 16, MAGIC_BLANK, 1)
    size = int(units["size"][9])
    split = split_messages(units, data[:cut] + coda + data[cut : cut + size - 16])
    assert split.indexes.tolist() == list(range(9))
    assert split.units_seen == 9
