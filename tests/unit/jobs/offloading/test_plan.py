"""The result of a dry run equals that of a loop over single messages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.jobs.offloading.plan import roll


def one_by_one(sizes: list[int], used: int, most: int) -> tuple[int, int]:
    made = 0
    for size in sizes:
        if used < 0 or used + size > most:
            made, used = made + 1, 0
        used += size
    return made, used


@given(
    st.lists(st.integers(91, 2000), min_size=1, max_size=60),
    st.integers(-1, 2000),
    st.integers(2000, 6000),
)
def test_segments_are_counted_as_the_writer_rolls_them(
    sizes: list[int], used: int, most: int
) -> None:
    assert roll(np.array(sizes, dtype=np.int64), used, most) == one_by_one(sizes, used, most)


@given(st.lists(st.integers(91, 2000), min_size=2, max_size=60), st.integers(1, 59))
def test_a_queue_read_in_two_pieces_rolls_like_one(sizes: list[int], cut: int) -> None:
    cut = min(cut, len(sizes) - 1)
    first, used = roll(np.array(sizes[:cut], dtype=np.int64), -1, 3000)
    second, end = roll(np.array(sizes[cut:], dtype=np.int64), used, 3000)
    assert (first + second, end) == roll(np.array(sizes, dtype=np.int64), -1, 3000)
