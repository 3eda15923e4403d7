"""What a listing of one segment's folder means."""

from __future__ import annotations

import random

import pytest

from tieredstore.errors import Corrupt, Unavailable
from tieredstore.providers.chunks.chain import (
    Chain,
    Extent,
    Garbage,
    Hole,
    chunk_name,
    make_merged_name,
    read_chain,
)
from tieredstore.providers.chunks.client import ObjectInfo

FOLDER = "cluster/b/T/0/COMMIT_LOG/cfcd208400000000000000000000"


def listed(**sizes: int) -> Chain:
    """c5=10: a chunk of 10 bytes at 5; m0_5=5: a run; s=9: the whole. Made in this order."""
    objects = []
    for made_ms, (name, size) in enumerate(sizes.items(), 1):
        if name.startswith("c"):
            name = chunk_name(int(name[1:]))
        elif name.startswith("m"):
            start, _, end = name[1:].partition("_")
            name = make_merged_name(int(start), int(end))
        objects.append(ObjectInfo(f"{FOLDER}/{name}", size, made_ms))
    return read_chain(objects, FOLDER)


def spans(chain: Chain) -> list[tuple[int, int, str]]:
    return [(extent.start, extent.end, extent.name[0]) for extent in chain.extents]


def garbage(chain: Chain) -> set[str]:
    return {found.name for found in chain.garbage}


def test_nothing_is_an_empty_segment() -> None:
    assert listed() == Chain()
    assert Chain().size_bytes == 0


def test_writes_follow_one_another() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    assert spans(chain) == [(0, 5, "c"), (5, 15, "c"), (15, 16, "c")]
    assert (chain.size_bytes, chain.is_closed, chain.garbage) == (16, False, ())


def test_an_empty_write_at_the_end_is_the_seal() -> None:
    chain = listed(c0=5, c5=0)
    assert (chain.size_bytes, chain.marked, chain.sealed) == (5, True, False)
    assert listed(c0=0).marked


def test_a_merged_run_goes_before_what_it_was_made_of() -> None:
    chain = listed(c0=5, c5=10, c15=1, m0_15=15)
    assert spans(chain) == [(0, 15, "m"), (15, 16, "c")]
    assert chain.garbage == (Garbage(chunk_name(0), 4), Garbage(chunk_name(5), 4))


def test_w01_what_a_late_writer_put_below_the_chain_is_never_read() -> None:
    chain = listed(m0_15=15, c15=5, c0=5_000, c5=0, c10=7)
    assert spans(chain) == [(0, 15, "m"), (15, 20, "c")]
    assert garbage(chain) == {chunk_name(0), chunk_name(5), chunk_name(10)}
    assert not chain.marked


def test_the_longest_of_several_runs_is_read() -> None:
    chain = listed(m0_5=5, m0_15=15, m5_15=10)
    assert spans(chain) == [(0, 15, "m")]
    assert garbage(chain) == {make_merged_name(0, 5), make_merged_name(5, 15)}


def test_runs_that_overlap_are_both_read() -> None:
    chain = listed(m0_15=15, m10_30=20, c30=1)
    assert spans(chain) == [(0, 15, "m"), (15, 30, "m"), (30, 31, "c")]
    assert [extent.skip for extent in chain.extents] == [0, 5, 0]
    assert chain.garbage == ()


def test_a_run_of_another_length_than_its_name_tells_is_not_content() -> None:
    chain = listed(c0=5, c5=10, m0_15=14)
    assert spans(chain) == [(0, 5, "c"), (5, 15, "c")]
    assert garbage(chain) == set()


def test_a_sealed_segment_is_one_object_and_its_marker() -> None:
    chain = listed(c0=5, m5_15=10, c15=0, s=15)
    assert spans(chain) == [(0, 15, "s")]
    assert (chain.sealed, chain.marked) == (True, True)
    assert garbage(chain) == {chunk_name(0), make_merged_name(5, 15)}


def test_o07_a_missing_object_is_a_hole_with_its_offsets() -> None:
    chain = listed(c0=5, c15=1, c16=4)
    assert chain.holes == (Hole(5, 15),)
    assert chain.size_bytes == 20
    chain.check_whole(FOLDER, 0, 5)
    chain.check_whole(FOLDER, 15, 5)
    with pytest.raises(Corrupt, match=r"bytes 5 to 15 .*next valid offset is 15") as caught:
        chain.check_whole(FOLDER, 4, 2)
    assert caught.value.offset == 5
    assert listed(c5=5).holes == (Hole(0, 5),)
    assert listed(c0=5, m10_20=10, c30=1).holes == (Hole(5, 10), Hole(20, 30))


def test_o07_order_and_repetition_do_not_matter() -> None:
    sizes = {"c0": 5, "c5": 10, "m0_15": 15, "c15": 3, "c18": 4, "m15_22": 7, "c22": 0}
    expected = listed(**sizes)
    objects = [
        ObjectInfo(f"{FOLDER}/{extent.name}", extent.length, extent.modified_ms)
        for extent in expected.extents
    ]
    objects += [ObjectInfo(f"{FOLDER}/{name}", 0) for name in ("other", "c.12", "m.x", "")]
    for _ in range(10):
        random.shuffle(objects)
        again = read_chain(objects * 2, FOLDER)
        assert again.extents == expected.extents


def test_o07_two_sizes_of_one_object_are_refused() -> None:
    objects = [ObjectInfo(f"{FOLDER}/{chunk_name(0)}", size) for size in (4, 5)]
    with pytest.raises(Unavailable, match="4 and 5"):
        read_chain(objects, FOLDER)


def test_changes_are_what_a_listing_would_show() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    assert listed(c0=5, c5=10).append(1, 3) == chain
    merged = chain.with_merged(0, 15, 4)
    assert merged == listed(c0=5, c5=10, c15=1, m0_15=15)
    whole = chain.with_whole(4)
    assert (spans(whole), garbage(whole)) == ([(0, 16, "s")], garbage(chain.with_whole(4)))
    assert merged.drop_garbage(frozenset({chunk_name(0)})).garbage == (Garbage(chunk_name(5), 4),)


def test_only_whole_extents_are_replaced() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    for start, end in ((0, 14), (1, 15), (16, 20), (15, 17)):
        assert chain.with_merged(start, end, 9) is None


def test_extents_of_a_range() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    assert [extent.start for extent in chain.find_extents(4, 2)] == [0, 5]
    assert [extent.start for extent in chain.find_extents(5, 10)] == [5]
    assert chain.find_extents(16, 5) == ()
    assert chain.find_extents(0, 16) == chain.extents


def test_an_extent_at_the_start_of_its_object_skips_nothing() -> None:
    assert Extent(5, 9, "x").skip == 0
    assert Extent(5, 9, "x", 0, 2).skip == 3
