"""When objects are merged, and into which parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import Invalid
from tieredstore.providers.chunks.chain import Chain, Extent, chunk_name, make_merged_name
from tieredstore.providers.chunks.client import ClientLimits
from tieredstore.providers.chunks.upkeep.parts import Copied, plan_parts
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

POLICY = MergePolicy(fan_in=4, target_bytes=160, part_bytes=100, free_bytes=10)


def extents(*lengths: int, merged: int = 0) -> list[Extent]:
    """The first `merged` of them are runs."""
    found = []
    position = 0
    for number, length in enumerate(lengths):
        end = position + length
        name = make_merged_name(position, end) if number < merged else chunk_name(position)
        found.append(Extent(position, end, name))
        position = end
    return found


def next_lengths(*lengths: int, merged: int = 0) -> list[int] | None:
    run = POLICY.next_run(extents(*lengths, merged=merged))
    return None if run is None else [extent.length for extent in run]


def test_few_small_writes_stay() -> None:
    assert next_lengths() is None
    assert next_lengths(1, 2, 3) is None
    assert next_lengths(90) is None


def test_as_many_writes_as_the_fan_in_are_merged() -> None:
    assert next_lengths(1, 2, 3, 4) == [1, 2, 3, 4]


def test_as_many_bytes_as_the_target_are_merged() -> None:
    assert next_lengths(90, 80) == [90, 80]
    assert next_lengths(90, 60) is None


def test_what_is_merged_at_once_is_bounded() -> None:
    assert next_lengths(*[50] * 100) == [50, 50, 50, 50]


def test_former_runs_no_longer_than_the_new_one_go_into_it() -> None:
    assert next_lengths(60, 20, 5, 5, 5, 5, merged=2) == [20, 5, 5, 5, 5]
    assert next_lengths(60, 30, 5, 5, 5, 5, merged=2) == [5, 5, 5, 5]
    assert next_lengths(9, 1, 1, 1, 1, merged=1) == [9, 1, 1, 1, 1]


def test_large_writes_are_merged_by_number_only() -> None:
    assert next_lengths(150, 150, 150) is None
    assert next_lengths(150, 150, 150, 150) == [150] * 4
    assert next_lengths(600, 150, 150) is None
    assert next_lengths(600, 600, 600, 600) == [600] * 4


def test_small_writes_shut_in_by_a_large_one_become_one() -> None:
    assert next_lengths(150, 5, 6, 150) == [5, 6]
    assert next_lengths(150, 5, 150) is None


@given(st.lists(st.integers(1, 400), max_size=400))
def test_a_chain_never_has_many_objects(lengths: list[int]) -> None:
    chain = Chain()
    rewritten = 0
    for length in lengths:
        chain = chain.append(length, 0)
        while (run := POLICY.next_run(chain.extents)) is not None:
            assert len(run) > 1
            start, end = run[0].start, run[-1].end
            merged = chain.with_merged(start, end, 0)
            assert merged is not None
            assert len(merged.extents) < len(chain.extents)
            chain = merged
            rewritten += end - start
    assert chain.size_bytes == sum(lengths)
    assert len(chain.extents) <= 24
    assert rewritten <= 12 * chain.size_bytes


@given(
    st.lists(st.integers(1, 250), min_size=1, max_size=40),
    st.integers(100, 300),
)
def test_parts_are_the_content_within_what_a_store_allows(lengths: list[int], most: int) -> None:
    run = extents(*lengths)
    limits = ClientLimits(min_part_bytes=50, max_part_bytes=most)
    parts = plan_parts(run, limits)
    assert parts[0].start == 0
    assert parts[-1].end == run[-1].end
    assert all(left.end == right.start for left, right in pairwise(parts))
    for part in parts[:-1]:
        assert 50 <= part.end - part.start <= most
    assert parts[-1].end - parts[-1].start <= most
    for part in parts:
        if isinstance(part, Copied):
            assert part.extent.start <= part.start < part.end <= part.extent.end


def test_what_is_long_enough_is_copied() -> None:
    limits = ClientLimits(min_part_bytes=50)
    parts = plan_parts(extents(60, 10, 10, 200, 5), limits)
    assert [(isinstance(part, Copied), part.start, part.end) for part in parts] == [
        (True, 0, 60),
        (False, 60, 110),
        (True, 110, 280),
        (False, 280, 285),
    ]


def test_more_parts_than_an_upload_can_have_are_refused() -> None:
    with pytest.raises(Invalid, match="3 parts"):
        plan_parts(extents(60, 60, 60), ClientLimits(min_part_bytes=50, max_parts=2))
