"""What a listing of one segment's folder means."""

from __future__ import annotations

import random

import pytest

from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.providers.chunks.client import ObjectInfo
from tieredstore.providers.chunks.lives.chain import (
    NOTHING_INHERITED,
    Chain,
    Garbage,
    Hole,
    InheritedSegment,
    Span,
    read_chain,
)
from tieredstore.providers.chunks.lives.names import Life, chunk_name, make_merged_name

FOLDER = "cluster/b/T/0/COMMIT_LOG/cfcd208400000000000000000000"
LIFE = Life(1, 1)


def name_in(life: Life, short: str) -> str:
    """c5: a chunk at 5; m0_5: a run; s: the whole; t: a tombstone."""
    if short.startswith("c"):
        return life.name(chunk_name(int(short[1:])))
    if short.startswith("m"):
        start, _, end = short[1:].partition("_")
        return life.name(make_merged_name(int(start), int(end)))
    return life.name(short)


def objects_in(life: Life, **sizes: int) -> list[ObjectInfo]:
    """Of these names and sizes, made in this order."""
    return [
        ObjectInfo(f"{FOLDER}/{name_in(life, short)}", size, made_ms)
        for made_ms, (short, size) in enumerate(sizes.items(), 1)
    ]


def listed(**sizes: int) -> Chain:
    """What one life of epoch 1 has, whose own view that is."""
    return read_chain(objects_in(LIFE, **sizes), FOLDER, 1)


def spans(chain: Chain) -> list[tuple[int, int, str]]:
    return [
        (extent.start, extent.end, extent.name.rpartition("/")[2][0]) for extent in chain.extents
    ]


def garbage_of(*shorts: str) -> set[str]:
    return {name_in(LIFE, short) for short in shorts}


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
    assert chain.garbage == (Garbage(name_in(LIFE, "c0"), 4), Garbage(name_in(LIFE, "c5"), 4))


def test_w01_what_a_late_writer_put_below_the_chain_is_never_read() -> None:
    chain = listed(m0_15=15, c15=5, c0=5_000, c5=0, c10=7)
    assert spans(chain) == [(0, 15, "m"), (15, 20, "c")]
    assert garbage(chain) == garbage_of("c0", "c5", "c10")
    assert not chain.marked


def test_the_longest_of_several_runs_is_read() -> None:
    chain = listed(m0_5=5, m0_15=15, m5_15=10)
    assert spans(chain) == [(0, 15, "m")]
    assert garbage(chain) == garbage_of("m0_5", "m5_15")


@pytest.mark.parametrize(
    ("earlier", "later"), [("m0_16", "s"), ("m0_16", "m0_16"), ("m5_16", "m5_16")]
)
def test_of_runs_that_end_together_the_one_made_last_counts(earlier: str, later: str) -> None:
    start, last = (5 if earlier.startswith("m5") else 0), Life(1, 9)
    objects = objects_in(LIFE, c0=5, **{earlier: 16 - start}) + objects_in(
        last, **{later: 16 - start}
    )
    chain = read_chain(objects, FOLDER, 1)
    assert chain.size_bytes == 16
    assert chain.extents[-1].name == name_in(last, later)
    assert name_in(LIFE, earlier) in garbage(chain)


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
    assert garbage(chain) == garbage_of("c0", "m5_15")


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
    objects += [
        ObjectInfo(f"{FOLDER}/{name}", 0)
        for name in ("other", "c.12", "m.x", "", f"{LIFE}/c.12", f"{LIFE}/x")
    ]
    for _ in range(10):
        random.shuffle(objects)
        again = read_chain(objects * 2, FOLDER, 1)
        assert again.extents == expected.extents


def test_o07_two_sizes_of_one_object_are_refused() -> None:
    objects = [ObjectInfo(f"{FOLDER}/{name_in(LIFE, 'c0')}", size) for size in (4, 5)]
    with pytest.raises(Unavailable, match="4 and 5"):
        read_chain(objects, FOLDER)


def test_changes_are_what_a_listing_would_show() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    assert listed(c0=5, c5=10).append(1, 3, LIFE) == chain
    merged = chain.with_merged(0, 15, 4, LIFE)
    assert merged == listed(c0=5, c5=10, c15=1, m0_15=15)
    whole = chain.with_whole(4, LIFE)
    assert (spans(whole), garbage(whole)) == ([(0, 16, "s")], garbage(chain.with_whole(4, LIFE)))
    assert merged.drop_garbage(frozenset({name_in(LIFE, "c0")})).garbage == (
        Garbage(name_in(LIFE, "c5"), 4),
    )


def test_only_whole_extents_are_replaced() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    for start, end in ((0, 14), (1, 15), (16, 20), (15, 17)):
        assert chain.with_merged(start, end, 9, LIFE) is None


def test_extents_of_a_range() -> None:
    chain = listed(c0=5, c5=10, c15=1)
    assert [extent.start for extent in chain.find_extents(4, 2)] == [0, 5]
    assert [extent.start for extent in chain.find_extents(5, 10)] == [5]
    assert chain.find_extents(16, 5) == ()
    assert chain.find_extents(0, 16) == chain.extents


# Lives


def view(
    *lives: tuple[Life, dict[str, int]],
    epoch: int = 1,
    inherited: InheritedSegment = NOTHING_INHERITED,
) -> Chain:
    """What several lives have, as the inheritance of an epoch lets it be seen."""
    objects = [info for life, sizes in lives for info in objects_in(life, **sizes)]
    return read_chain(objects, FOLDER, epoch, inherited)


def inherits(*found: tuple[Life, int, int], closed: bool = False) -> InheritedSegment:
    return InheritedSegment(tuple(Span(*span) for span in found), closed)


SECOND, LATER, HEIR = Life(1, 2), Life(1, 3), Life(2, 1)


def test_lives_of_one_epoch_follow_one_another() -> None:
    chain = view((LIFE, {"c0": 5, "c5": 3}), (SECOND, {"c8": 4}))
    assert spans(chain) == [(0, 5, "c"), (5, 8, "c"), (8, 12, "c")]
    assert [extent.life for extent in chain.extents] == [LIFE, LIFE, SECOND]
    assert chain.born == LIFE


def test_a_write_that_was_left_behind_gives_way_to_the_one_made_in_its_place() -> None:
    chain = view((LIFE, {"c0": 5, "c5": 9}), (SECOND, {"c5": 3, "c8": 1}))
    assert spans(chain) == [(0, 5, "c"), (5, 8, "c"), (8, 9, "c")]
    assert garbage(chain) == garbage_of("c5")
    further = view((LIFE, {"c0": 5, "c5": 9, "c14": 2}), (SECOND, {"c5": 3}))
    assert (spans(further), further.holes) == ([(0, 5, "c"), (5, 8, "c")], ())
    assert garbage(further) == garbage_of("c5")  # the other one is behind the end
    assert spans(view((LIFE, {"c0": 5, "c5": 9}))) == [(0, 5, "c"), (5, 14, "c")]


def test_a_seal_that_was_left_behind_closes_nothing() -> None:
    assert view((LIFE, {"c0": 5, "c5": 0})).marked
    chain = view((LIFE, {"c0": 5, "c5": 0}), (SECOND, {"c5": 3}))
    assert (chain.marked, chain.size_bytes) == (False, 8)
    late = view((LIFE, {"c0": 5, "c5": 0}), (SECOND, {"c8": 3}))  # its c5 was not listed
    assert (late.marked, late.holes) == (False, (Hole(5, 8),))


def test_what_comes_late_behind_a_seal_is_not_content() -> None:
    chain = view((LIFE, {"c0": 5, "c5": 9}), (SECOND, {"c5": 0}))
    assert (chain.marked, chain.size_bytes, chain.holes) == (True, 5, ())


def test_an_epoch_sees_what_it_inherits_and_no_more() -> None:
    known = inherits((LIFE, 0, 8))
    chain = view((LIFE, {"c0": 5, "c5": 3, "c8": 7}), (HEIR, {"c8": 2}), epoch=2, inherited=known)
    assert spans(chain) == [(0, 5, "c"), (5, 8, "c"), (8, 10, "c")]
    assert garbage(chain) == garbage_of("c8")
    assert chain.epoch == 2
    nothing = view((LIFE, {"c0": 5}), (HEIR, {"c0": 2}), epoch=2)
    assert (spans(nothing), garbage(nothing)) == ([(0, 2, "c")], garbage_of("c0"))


def test_what_a_later_epoch_made_is_not_seen() -> None:
    chain = view((LIFE, {"c0": 5}), (HEIR, {"c5": 2, "m0_7": 7}))
    assert (spans(chain), chain.garbage) == ([(0, 5, "c")], ())


def test_a_late_run_of_what_was_inherited_is_cut() -> None:
    known = inherits((LIFE, 0, 8), (SECOND, 8, 12))
    runs = {"c0": 5, "c5": 3, "m0_15": 15}
    chain = view((LIFE, runs), (SECOND, {"c8": 4, "c12": 9}), epoch=2, inherited=known)
    assert spans(chain) == [(0, 8, "m"), (8, 12, "c")]
    assert chain.holes == ()


def test_the_heir_merges_what_it_inherits() -> None:
    known = inherits((LIFE, 0, 8))
    own = {"m0_5": 5, "c8": 2}
    chain = view((LIFE, {"c0": 5, "c5": 3}), (HEIR, own), epoch=2, inherited=known)
    assert spans(chain) == [(0, 5, "m"), (5, 8, "c"), (8, 10, "c")]
    assert garbage(chain) == garbage_of("c0")
    assert chain.leave_to_heirs() == inherits((HEIR, 0, 5), (LIFE, 5, 8), (HEIR, 8, 10))
    collected = view((LIFE, {"c5": 3}), (HEIR, own), epoch=2, inherited=known)
    assert collected.extents == tuple(
        extent._replace(modified_ms=found.modified_ms)
        for extent, found in zip(chain.extents, collected.extents, strict=True)
    )


def test_a_tombstone_ends_what_is_before_it() -> None:
    dead = (LIFE, {"c0": 5, "c5": 3})
    chain = view(dead, (SECOND, {"t": 0}))
    assert not chain.is_there
    assert garbage(chain) == garbage_of("c0", "c5")
    again = view(dead, (SECOND, {"t": 0}), (LATER, {"c0": 2}))
    assert (spans(again), again.born) == ([(0, 2, "c")], LATER)
    assert garbage(again) == garbage_of("c0", "c5")
    heirs = view(dead, (HEIR, {"t": 0}), epoch=2, inherited=inherits((LIFE, 0, 8), closed=True))
    assert not heirs.is_there
    assert garbage(heirs) == garbage_of("c0", "c5")


def test_the_tombstone_of_a_former_epoch_is_garbage() -> None:
    chain = view((LIFE, {"c0": 5}), (SECOND, {"t": 0}), epoch=2)
    assert {found.name for found in chain.garbage} == {*garbage_of("c0"), SECOND.name("t")}


@pytest.mark.parametrize("whole", [True, False])
def test_a_sealed_segment_is_inherited_as_sealed(whole: bool) -> None:
    known = inherits((LIFE, 0, 8), closed=True)
    content = {"s": 8} if whole else {"c0": 5, "c5": 3}
    chain = view((LIFE, {**content, "c8": 0}), epoch=2, inherited=known)
    assert (chain.size_bytes, chain.marked, chain.sealed) == (8, True, whole)
    assert garbage(chain) == garbage_of("c8")  # what is inherited says it
    assert view(epoch=2, inherited=inherits(closed=True)).is_there


def test_a_late_whole_seals_nothing_that_was_inherited_open() -> None:
    known = inherits((LIFE, 0, 5))
    chain = view((LIFE, {"c0": 5, "c5": 3, "s": 8}), epoch=2, inherited=known)
    assert (chain.size_bytes, chain.is_closed) == (5, False)


def test_the_objects_of_format_1_are_refused() -> None:
    for name in (chunk_name(0), make_merged_name(0, 5), "s"):
        with pytest.raises(Invalid, match="format version 1"):
            read_chain([ObjectInfo(f"{FOLDER}/{name}", 5)], FOLDER)
