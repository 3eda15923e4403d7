"""Tests of the sum, minimum and maximum of a column, for few rows and for many."""

from __future__ import annotations

import numpy as np
import pytest

from tieredstore.message.buffers import add_up, find_greatest, find_least


@pytest.mark.parametrize("dtype", [">i4", ">i8", np.int32, np.int64])
@pytest.mark.parametrize("count", [1, 31, 32, 1_000])
def test_few_rows_and_many_have_the_bounds_that_they_have(count: int, dtype: str) -> None:
    rows = np.random.default_rng(count).integers(-(2**31), 2**31, count)
    column = rows.astype(dtype)
    assert find_least(column) == min(rows.tolist())
    assert find_greatest(column) == max(rows.tolist())
    assert add_up(column) == sum(rows.tolist())
    assert {type(find(column)) for find in (find_least, find_greatest, add_up)} == {int}
