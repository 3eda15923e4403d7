"""A backfill packs numbers into few bytes, and unpacks them unchanged."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tieredstore.jobs.backfilling.measure import pack_numbers, unpack_numbers

INT64S = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64S | st.integers(-300, 300), max_size=20))
@example([2**62 + 7, 5])
@example([2**60 + 1, 2**60 - 3])
@example([1_700_000_000_001, 1_699_999_999_990])
@example([127, -1, 127, -128])
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert unpack_numbers(pack_numbers(values)).tolist() == numbers


def test_neighbours_take_a_byte() -> None:
    assert pack_numbers(np.arange(100, dtype=np.int64))[:1] == b"b"
