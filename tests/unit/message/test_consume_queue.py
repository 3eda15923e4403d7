"""Consume queue units (`docs/formats/consume-queue.md`)."""

from __future__ import annotations

import pytest

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message import consume_queue
from tieredstore.message.consume_queue import (
    BLANK_UNIT,
    BatchUnit,
    Unit,
    batch_units_from,
    make_units,
    pack_batch_unit,
    pack_unit,
    pack_units,
    units_from,
    unpack_batch_unit,
    unpack_unit,
)

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
    assert units_from(pack_units(rows)).tolist() == rows
    assert unpack_unit(pack_units(rows), 40) == rows[0]


@pytest.mark.parametrize("position", [-1, 1, 20, 2**70])
def test_units_that_are_not_whole_are_corrupt(position: int) -> None:
    with pytest.raises(Corrupt, match=f"unit at {position}: expected 20 bytes"):
        unpack_unit(EXAMPLE, position)
    with pytest.raises(Corrupt, match="expected 46 bytes"):
        unpack_batch_unit(EXAMPLE, position)


def test_a_torn_tail_is_corrupt_and_says_where() -> None:
    with pytest.raises(Corrupt, match="multiple of 20 bytes, found 39") as raised:
        units_from(EXAMPLE + EXAMPLE[:-1])
    assert raised.value.offset == consume_queue.UNIT_SIZE
    with pytest.raises(Corrupt, match="multiple of 46 bytes, found 20"):
        batch_units_from(EXAMPLE)


def test_values_that_do_not_fit_are_invalid() -> None:
    with pytest.raises(Invalid):
        pack_unit(2**63, 1, 1)
    with pytest.raises(Invalid):
        pack_units([(1, 2**31, 1)])
    with pytest.raises(Invalid):
        pack_batch_unit(BatchUnit(0, 0, 0, 0, 0, 2**15))


def test_views_are_of_the_buffer() -> None:
    data = bytearray(EXAMPLE * 2)
    units_from(data)["size"][1] = 7
    assert unpack_unit(data, 20).size == 7
