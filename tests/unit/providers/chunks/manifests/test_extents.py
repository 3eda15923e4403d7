"""Compact extents equal the tuple that they were created from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.providers.chunks.manifests.extents import (
    Extent,
    ExtentRows,
    ExtentsBuilder,
    add_extent,
    are_grouped,
    iterate_places,
    keep_extents,
)
from tieredstore.providers.chunks.manifests.names import Generation, make_grouped_name
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest

numbers = st.integers(-1, 2**63 - 1)
extents = st.builds(
    Extent,
    numbers,
    numbers,
    st.sampled_from(
        [
            "e0000000001.0000000002/c.00000000000000000000",
            "e0000000001.0000000002/s",
            "e0000000001.0000000003/u@COMMIT_LOG/00/e0000000001.0000000004/u.1-2.0.4.0-20",
            make_grouped_name(Generation(1, 2), "0.1.2.3-4.5", is_write=True),
        ]
    ),
    numbers,
    numbers,
    numbers,
)


@given(st.lists(extents, max_size=9).map(tuple))
def test_what_is_kept_is_what_was_given(given_ones: tuple[Extent, ...]) -> None:
    kept = keep_extents(given_ones)
    assert kept == given_ones
    assert given_ones == kept
    assert list(kept) == list(given_ones)
    assert len(kept) == len(given_ones)
    assert hash(kept) == hash(given_ones)
    for start in range(-2, len(given_ones) + 1):
        assert kept[start:] == given_ones[start:]
        assert kept[:start:2] == given_ones[:start:2]
    assert [kept[place] for place in range(-len(kept), len(kept))] == [*given_ones, *given_ones]
    assert keep_extents(kept) is kept
    places = [(one.name.partition("/")[0], one.start, one.end) for one in given_ones]
    assert list(iterate_places(kept)) == list(iterate_places(given_ones)) == places
    assert are_grouped(kept) == are_grouped(given_ones) == all(e.is_grouped for e in given_ones)
    assert SegmentManifest(kept) == SegmentManifest(given_ones)


@given(st.lists(extents, max_size=9))
def test_extents_are_added_one_by_one(given_ones: list[Extent]) -> None:
    kept = keep_extents(())
    for extent in given_ones:
        kept = add_extent(kept, extent)
    assert kept == tuple(given_ones)
    assert kept == keep_extents(given_ones)


@given(st.lists(extents, max_size=9))
def test_extents_are_built_one_by_one(given_ones: list[Extent]) -> None:
    builder = ExtentsBuilder()
    for extent in given_ones:
        builder.append(extent)
    assert builder.build() == tuple(given_ones)


def test_other_extents_are_not_equal() -> None:
    some = [Extent(place, place + 1, f"c.{place}") for place in range(6)]
    kept = keep_extents(some)
    assert kept != keep_extents([*some[:-1], some[-1]._replace(crc=7)])
    assert kept != keep_extents([*some[:-1], some[-1]._replace(name="c.x")])
    assert kept != tuple(some[:-1])
    assert kept != some
    assert repr(kept).startswith("ExtentRows(Extent(start=0")


def test_what_is_behind_the_end_is_an_error() -> None:
    kept = keep_extents([Extent(place, place + 1, "c") for place in range(6)])
    for place in (6, -7):
        with pytest.raises(IndexError):
            kept[place]


def test_many_take_little_memory_and_share_their_names() -> None:
    group = "0.0000000001.0000000002.00000000-ffffffff.99"
    ones = [
        keep_extents(
            Extent(n, n + 1, make_grouped_name(Generation(1, 9), f"{group}{n}", is_write=True))
            for n in range(9)
        )
        for _ in range(2)
    ]
    assert all(isinstance(kept, ExtentRows) for kept in ones)
    first, second = (kept[3].name for kept in ones)
    assert first == second == f"e0000000001.0000000009/g@{group}3"
    names = [vars_of(kept) for kept in ones]
    assert all(one is other for one, other in zip(*names, strict=True))


def vars_of(kept: object) -> tuple[str, ...]:
    assert isinstance(kept, ExtentRows)
    return kept._names


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**64)])
def test_numbers_of_damaged_objects_are_kept_as_they_are(number: int) -> None:
    some = [Extent(0, 1, "c", 0, 0, number)] * 5
    assert keep_extents(some) == tuple(some)
    kept = keep_extents([Extent(0, 1, "c")] * 5)
    assert add_extent(kept, some[0]) == (*kept, some[0])
