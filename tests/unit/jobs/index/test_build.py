"""Tests of the limits on the size of index files."""

from __future__ import annotations

import pytest

from tieredstore.errors import Invalid
from tieredstore.jobs.index.build import Capacity
from tieredstore.message.index.tiered import SLOT_SIZE, compacted_size


def test_files_that_could_reach_2_gib_are_refused_by_the_settings_that_make_them() -> None:
    """Settings under which index files could reach 2 GiB are rejected, because positions are signed
    32-bit numbers."""
    max_items = 19_999_999
    slots = ((1 << 31) - compacted_size(0, max_items)) // SLOT_SIZE
    assert compacted_size(slots, max_items) == 1 << 31
    keys = "tieredStoreIndexFileMaxHashSlotNum and tieredStoreIndexFileMaxIndexNum"
    with pytest.raises(Invalid, match=f"^{keys}: .* below 2 GiB, found {1 << 31} bytes$"):
        Capacity(slots, max_items)
    assert Capacity(slots - 1, max_items).items == max_items - 1
