"""Damage to the slots of an index file is reported once, at its location."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.tier_builder import BROKER, SLOTS, BuiltTier, small_tier
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.index.tiered import (
    COMPACTED_ITEM_SIZE,
    COMPACTED_SLOT_DTYPE,
    HEADER_SIZE,
    SLOT_SIZE,
)

INDEX_ID = SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


def change_slots(tier: BuiltTier, field: str, slots: list[int], by_bytes: int) -> None:
    path = tier.path(INDEX_ID)
    data = bytearray(path.read_bytes())
    table = np.frombuffer(data, COMPACTED_SLOT_DTYPE, SLOTS, HEADER_SIZE)
    table[field][slots] += by_bytes
    path.write_bytes(data)


def told_of_slots(tier: BuiltTier) -> list[tuple[str, int | None]]:
    """Return the findings of `verify` about slots: the text and the byte position of each."""
    found = [finding for finding in tier.damage() if finding.kind == "index-slot"]
    assert {finding.segment for finding in found} <= {INDEX_ID}
    return [(finding.message, finding.position) for finding in found]


def wrong_position(slot: int) -> tuple[str, int]:
    return f"position of slot {slot}", HEADER_SIZE + slot * SLOT_SIZE


@pytest.mark.parametrize("by_bytes", [COMPACTED_ITEM_SIZE, -COMPACTED_ITEM_SIZE])
@pytest.mark.parametrize("slot", [0, 3, SLOTS - 2])
def test_a_wrong_length_is_told_once_however_many_slots_follow(
    tier: BuiltTier, slot: int, by_bytes: int
) -> None:
    """A wrong length in an index slot is reported once, at the next slot."""
    change_slots(tier, "length", [slot], by_bytes)
    assert told_of_slots(tier) == [
        wrong_position(slot + 1),
        ("end of the last slot's items", HEADER_SIZE + (SLOTS - 1) * SLOT_SIZE),
    ]


@pytest.mark.parametrize("slots", [[0], [3], [SLOTS - 1], [2, 5], [1, 2, SLOTS - 1]])
def test_each_wrong_position_is_told(tier: BuiltTier, slots: list[int]) -> None:
    change_slots(tier, "position", slots, COMPACTED_ITEM_SIZE)
    assert told_of_slots(tier) == [wrong_position(slot) for slot in slots]
