"""Tests of consume queue units (`docs/formats/consume-queue.md`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.kit.units import (
    Unit,
    pack_units,
    unpack_batch_unit,
    unpack_unit,
    view_batch_units,
    view_units,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message import consume_queue
from tieredstore.message.consume_queue import (
    BLANK_UNIT,
    UNIT_DTYPE,
    BatchUnit,
    find_last_message,
    make_units,
    pack_batch_unit,
    pack_unit,
)
from tieredstore.message.layout import is_head_of_message

EXAMPLE = bytes.fromhex("000000000000010e00000087000000000027a807")
BATCH_EXAMPLE = bytes.fromhex(
    "00000000000005c5000001520000000000000000000001a1fe31a03d00000000000000000002ffffffff00000000"
)


def test_the_worked_examples_both_ways() -> None:
    assert unpack_unit(EXAMPLE) == Unit(270, 135, 2598919)
    assert pack_unit(270, 135, 2598919) == EXAMPLE
    batch = BatchUnit(0x5C5, 0x152, 0, 0x1A1FE31A03D, 0, 2)
    assert unpack_batch_unit(BATCH_EXAMPLE) == batch
    assert pack_batch_unit(batch) == BATCH_EXAMPLE


def test_the_blank_unit() -> None:
    assert bytes.fromhex("00000000000000007fffffff0000000000000000") == BLANK_UNIT
    assert unpack_unit(BLANK_UNIT).is_blank
    assert not unpack_unit(EXAMPLE).is_blank


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**32, 2**63 - 1, -(2**63)])
def test_i06_offsets_and_tags_codes_hold_64_bits(value: int) -> None:
    rows = [(value, 2**31 - 1, value)] * 3
    assert make_units(*zip(*rows, strict=True)).tobytes() == pack_units(rows)
    assert pack_units(rows) == pack_unit(*rows[0]) * 3
    assert view_units(pack_units(rows)).tolist() == rows
    assert unpack_unit(pack_units(rows), 40) == rows[0]


@pytest.mark.parametrize("position", [-1, 1, 20, 2**70])
def test_units_that_are_not_whole_are_corrupt(position: int) -> None:
    with pytest.raises(Corrupt, match=f"unit at {position}: expected 20 bytes"):
        unpack_unit(EXAMPLE, position)
    with pytest.raises(Corrupt, match="expected 46 bytes"):
        unpack_batch_unit(EXAMPLE, position)


def test_a_torn_tail_is_corrupt_and_says_where() -> None:
    with pytest.raises(Corrupt, match="multiple of 20 bytes, found 39") as raised:
        view_units(EXAMPLE + EXAMPLE[:-1])
    assert raised.value.offset == consume_queue.UNIT_SIZE
    with pytest.raises(Corrupt, match="multiple of 46 bytes, found 20"):
        view_batch_units(EXAMPLE)


def test_values_that_do_not_fit_are_invalid() -> None:
    with pytest.raises(Invalid):
        pack_unit(2**63, 1, 1)
    with pytest.raises(Invalid):
        pack_units([(1, 2**31, 1)])
    with pytest.raises(Invalid):
        pack_batch_unit(BatchUnit(0, 0, 0, 0, 0, 2**15))


def test_views_are_of_the_buffer() -> None:
    data = bytearray(EXAMPLE * 2)
    view_units(data)["size"][1] = 7
    assert unpack_unit(data, 20).size == 7


@pytest.mark.parametrize(
    ("last", "reads"),
    [
        (9999, [1]),
        (9998, [1, 4096]),
        (5903, [1, 4096]),
        (5902, [1, 4096, 4096]),
        (0, [1, 4096, 4096, 1807]),
        (None, [1, 4096, 4096, 1807]),
    ],
)
def test_the_last_message_is_found_from_the_end(last: int | None, reads: list[int]) -> None:
    first, count = 100, 10_000
    units = make_units(np.arange(count) * 7, np.full(count, 7), np.arange(count))
    found_reads: list[int] = []
    asked: list[int] = []

    def read_units(offset: int, number: int) -> npt.NDArray[np.void]:
        found_reads.append(number)
        return units[offset - first : offset - first + number]

    def find_candidates(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        tags_codes = units["tags_code"].astype(np.int64)
        known: npt.NDArray[np.bool_] = tags_codes <= (-1 if last is None else last)
        known |= tags_codes % 1000 == 1
        return known

    def is_message(queue_offset: int, offset: int, size: int) -> bool:
        asked.append(queue_offset - first)
        assert (offset, size) == (asked[-1] * 7, 7)
        return asked[-1] == last

    found = find_last_message(first, first + count, read_units, find_candidates, is_message)
    assert found == (None if last is None else (first + last + 1, last * 7 + 7))
    assert found_reads == reads
    others = [number for number in range(9001, 0, -1000) if last is None or number > last]
    assert asked == [*others, *([] if last is None else [last])]


def test_no_message_in_no_units() -> None:
    def find_candidates(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        raise AssertionError(units)

    nothing = np.empty(0, dtype=UNIT_DTYPE)
    for until in (5, 9):  # an empty range, and units that cannot be read
        assert (
            find_last_message(5, until, lambda *_: nothing, find_candidates, lambda *_: True)
            is None
        )


@pytest.mark.parametrize(
    ("head", "is_head"),
    [
        ("00000064daa320a7", True),
        ("00000064daa320ab00", True),
        ("00000063daa320a7", False),
        ("00000064daa320a8", False),
        ("00000064cbd43194", False),
        ("00000064daa320", False),
        ("", False),
    ],
)
def test_the_head_of_a_message_is_its_size_and_magic(head: str, is_head: bool) -> None:
    assert is_head_of_message(bytes.fromhex(head), 100) is is_head
