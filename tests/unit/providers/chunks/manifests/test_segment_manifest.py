"""Tests of computing a segment manifest from the listing of a segment's folder."""

from __future__ import annotations

import random

import pytest

from tieredstore.contracts.objects import ObjectInfo
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name, make_merged_name
from tieredstore.providers.chunks.manifests.segment_manifest import (
    NOTHING_INHERITED,
    Garbage,
    Hole,
    ManifestEntry,
    SegmentManifest,
    Span,
    read_manifest,
)

FOLDER = "cluster/b/T/0/COMMIT_LOG/cfcd208400000000000000000000"
LIFE = Generation(1, 1)


def name_in(generation: Generation, short: str) -> str:
    """Return the name of an object. As short forms, `c5` is a chunk at byte 5, `m0_5` a merged run,
    `s` the sealed segment, and `t` a tombstone."""
    if short.startswith("c"):
        return generation.name(chunk_name(int(short[1:])))
    if short.startswith("m"):
        start, _, end = short[1:].partition("_")
        return generation.name(make_merged_name(int(start), int(end)))
    return generation.name(short)


def objects_in(generation: Generation, **sizes: int) -> list[ObjectInfo]:
    """Return objects in the folder of a segment generation. `sizes` maps short names (see
    `name_in`) to sizes, in the order of creation."""
    return [
        ObjectInfo(f"{FOLDER}/{name_in(generation, short)}", size, made_ms)
        for made_ms, (short, size) in enumerate(sizes.items(), 1)
    ]


def listed(**sizes: int) -> SegmentManifest:
    """Return the segment manifest of a segment with one generation, as computed by the writer of
    epoch 1. `sizes` maps short names (see `name_in`) to sizes."""
    return read_manifest(objects_in(LIFE, **sizes), FOLDER, 1)


def spans(manifest: SegmentManifest) -> list[tuple[int, int, str]]:
    return [
        (extent.start, extent.end, extent.name.rpartition("/")[2][0]) for extent in manifest.extents
    ]


def garbage_of(*shorts: str) -> set[str]:
    return {name_in(LIFE, short) for short in shorts}


def garbage(manifest: SegmentManifest) -> set[str]:
    return {found.name for found in manifest.garbage}


def test_nothing_is_an_empty_segment() -> None:
    assert listed() == SegmentManifest()
    assert SegmentManifest().size_bytes == 0


def test_writes_follow_one_another() -> None:
    manifest = listed(c0=5, c5=10, c15=1)
    assert spans(manifest) == [(0, 5, "c"), (5, 15, "c"), (15, 16, "c")]
    assert (manifest.size_bytes, manifest.is_closed, manifest.garbage) == (16, False, ())


def test_an_empty_write_at_the_end_is_the_seal() -> None:
    manifest = listed(c0=5, c5=0)
    assert (manifest.size_bytes, manifest.marked, manifest.sealed) == (5, True, False)
    assert listed(c0=0).marked


def test_a_merged_run_goes_before_what_it_was_made_of() -> None:
    manifest = listed(c0=5, c5=10, c15=1, m0_15=15)
    assert spans(manifest) == [(0, 15, "m"), (15, 16, "c")]
    assert manifest.garbage == (Garbage(name_in(LIFE, "c0"), 4), Garbage(name_in(LIFE, "c5"), 4))


def test_w01_what_a_late_writer_put_below_the_chain_is_never_read() -> None:
    manifest = listed(m0_15=15, c15=5, c0=5_000, c5=0, c10=7)
    assert spans(manifest) == [(0, 15, "m"), (15, 20, "c")]
    assert garbage(manifest) == garbage_of("c0", "c5", "c10")
    assert not manifest.marked


def test_the_longest_of_several_runs_is_read() -> None:
    manifest = listed(m0_5=5, m0_15=15, m5_15=10)
    assert spans(manifest) == [(0, 15, "m")]
    assert garbage(manifest) == garbage_of("m0_5", "m5_15")


@pytest.mark.parametrize(
    ("earlier", "later"), [("m0_16", "s"), ("m0_16", "m0_16"), ("m5_16", "m5_16")]
)
def test_of_runs_that_end_together_the_one_made_last_counts(earlier: str, later: str) -> None:
    start, last = (5 if earlier.startswith("m5") else 0), Generation(1, 9)
    objects = objects_in(LIFE, c0=5, **{earlier: 16 - start}) + objects_in(
        last, **{later: 16 - start}
    )
    manifest = read_manifest(objects, FOLDER, 1)
    assert manifest.size_bytes == 16
    assert manifest.extents[-1].name == name_in(last, later)
    assert name_in(LIFE, earlier) in garbage(manifest)


def test_runs_that_overlap_are_both_read() -> None:
    manifest = listed(m0_15=15, m10_30=20, c30=1)
    assert spans(manifest) == [(0, 15, "m"), (15, 30, "m"), (30, 31, "c")]
    assert [extent.skip for extent in manifest.extents] == [0, 5, 0]
    assert manifest.garbage == ()


def test_a_run_of_another_length_than_its_name_tells_is_not_content() -> None:
    manifest = listed(c0=5, c5=10, m0_15=14)
    assert spans(manifest) == [(0, 5, "c"), (5, 15, "c")]
    assert garbage(manifest) == set()


def test_a_sealed_segment_is_one_object_and_its_marker() -> None:
    manifest = listed(c0=5, m5_15=10, c15=0, s=15)
    assert spans(manifest) == [(0, 15, "s")]
    assert (manifest.sealed, manifest.marked) == (True, True)
    assert garbage(manifest) == garbage_of("c0", "m5_15")


def test_o07_a_missing_object_is_a_hole_with_its_offsets() -> None:
    manifest = listed(c0=5, c15=1, c16=4)
    assert manifest.holes == (Hole(5, 15),)
    assert manifest.size_bytes == 20
    manifest.check_whole(FOLDER, 0, 5)
    manifest.check_whole(FOLDER, 15, 5)
    with pytest.raises(Corrupt, match=r"bytes 5 to 15 .*next valid offset is 15") as caught:
        manifest.check_whole(FOLDER, 4, 2)
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
        again = read_manifest(objects * 2, FOLDER, 1)
        assert again.extents == expected.extents


def test_o07_two_sizes_of_one_object_are_refused() -> None:
    objects = [ObjectInfo(f"{FOLDER}/{name_in(LIFE, 'c0')}", size) for size in (4, 5)]
    with pytest.raises(Unavailable, match="4 and 5"):
        read_manifest(objects, FOLDER)


def test_changes_are_what_a_listing_would_show() -> None:
    manifest = listed(c0=5, c5=10, c15=1)
    assert listed(c0=5, c5=10).append(1, 3, LIFE) == manifest
    merged = manifest.with_merged(0, 15, 4, LIFE)
    assert merged == listed(c0=5, c5=10, c15=1, m0_15=15)
    whole = manifest.with_whole(4, LIFE)
    assert (spans(whole), garbage(whole)) == ([(0, 16, "s")], garbage(manifest.with_whole(4, LIFE)))
    assert merged.drop_garbage(frozenset({name_in(LIFE, "c0")})).garbage == (
        Garbage(name_in(LIFE, "c5"), 4),
    )


def test_only_whole_extents_are_replaced() -> None:
    manifest = listed(c0=5, c5=10, c15=1)
    for start, end in ((0, 14), (1, 15), (16, 20), (15, 17)):
        assert manifest.with_merged(start, end, 9, LIFE) is None


def test_extents_of_a_range() -> None:
    manifest = listed(c0=5, c5=10, c15=1)
    assert [extent.start for extent in manifest.find_extents(4, 2)] == [0, 5]
    assert [extent.start for extent in manifest.find_extents(5, 10)] == [5]
    assert manifest.find_extents(16, 5) == ()
    assert manifest.find_extents(0, 16) == manifest.extents


# Lives


def view(
    *generations: tuple[Generation, dict[str, int]],
    epoch: int = 1,
    inherited: ManifestEntry = NOTHING_INHERITED,
) -> SegmentManifest:
    """Return the segment manifest of several generations under the given epoch manifest."""
    objects = [
        info for generation, sizes in generations for info in objects_in(generation, **sizes)
    ]
    return read_manifest(objects, FOLDER, epoch, inherited)


def inherits(*found: tuple[Generation, int, int], closed: bool = False) -> ManifestEntry:
    return ManifestEntry(tuple(Span(*span) for span in found), closed)


SECOND, LATER, HEIR = Generation(1, 2), Generation(1, 3), Generation(2, 1)


def test_lives_of_one_epoch_follow_one_another() -> None:
    manifest = view((LIFE, {"c0": 5, "c5": 3}), (SECOND, {"c8": 4}))
    assert spans(manifest) == [(0, 5, "c"), (5, 8, "c"), (8, 12, "c")]
    assert [extent.generation for extent in manifest.extents] == [LIFE, LIFE, SECOND]
    assert manifest.born == LIFE


def test_a_write_that_was_left_behind_gives_way_to_the_one_made_in_its_place() -> None:
    manifest = view((LIFE, {"c0": 5, "c5": 9}), (SECOND, {"c5": 3, "c8": 1}))
    assert spans(manifest) == [(0, 5, "c"), (5, 8, "c"), (8, 9, "c")]
    assert garbage(manifest) == garbage_of("c5")
    further = view((LIFE, {"c0": 5, "c5": 9, "c14": 2}), (SECOND, {"c5": 3}))
    assert (spans(further), further.holes) == ([(0, 5, "c"), (5, 8, "c")], ())
    assert garbage(further) == garbage_of("c5")  # the other one is behind the end
    assert spans(view((LIFE, {"c0": 5, "c5": 9}))) == [(0, 5, "c"), (5, 14, "c")]


def test_a_seal_that_was_left_behind_closes_nothing() -> None:
    assert view((LIFE, {"c0": 5, "c5": 0})).marked
    manifest = view((LIFE, {"c0": 5, "c5": 0}), (SECOND, {"c5": 3}))
    assert (manifest.marked, manifest.size_bytes) == (False, 8)
    late = view((LIFE, {"c0": 5, "c5": 0}), (SECOND, {"c8": 3}))  # its c5 was not listed
    assert (late.marked, late.holes) == (False, (Hole(5, 8),))


def test_what_comes_late_behind_a_seal_is_not_content() -> None:
    manifest = view((LIFE, {"c0": 5, "c5": 9}), (SECOND, {"c5": 0}))
    assert (manifest.marked, manifest.size_bytes, manifest.holes) == (True, 5, ())


def test_an_epoch_sees_what_it_inherits_and_no_more() -> None:
    known = inherits((LIFE, 0, 8))
    manifest = view(
        (LIFE, {"c0": 5, "c5": 3, "c8": 7}), (HEIR, {"c8": 2}), epoch=2, inherited=known
    )
    assert spans(manifest) == [(0, 5, "c"), (5, 8, "c"), (8, 10, "c")]
    assert garbage(manifest) == garbage_of("c8")
    assert manifest.epoch == 2
    nothing = view((LIFE, {"c0": 5}), (HEIR, {"c0": 2}), epoch=2)
    assert (spans(nothing), garbage(nothing)) == ([(0, 2, "c")], garbage_of("c0"))


def test_what_a_later_epoch_made_is_not_seen() -> None:
    manifest = view((LIFE, {"c0": 5}), (HEIR, {"c5": 2, "m0_7": 7}))
    assert (spans(manifest), manifest.garbage) == ([(0, 5, "c")], ())


def test_a_late_run_of_what_was_inherited_is_cut() -> None:
    known = inherits((LIFE, 0, 8), (SECOND, 8, 12))
    runs = {"c0": 5, "c5": 3, "m0_15": 15}
    manifest = view((LIFE, runs), (SECOND, {"c8": 4, "c12": 9}), epoch=2, inherited=known)
    assert spans(manifest) == [(0, 8, "m"), (8, 12, "c")]
    assert manifest.holes == ()


def test_the_heir_merges_what_it_inherits() -> None:
    known = inherits((LIFE, 0, 8))
    own = {"m0_5": 5, "c8": 2}
    manifest = view((LIFE, {"c0": 5, "c5": 3}), (HEIR, own), epoch=2, inherited=known)
    assert spans(manifest) == [(0, 5, "m"), (5, 8, "c"), (8, 10, "c")]
    assert garbage(manifest) == garbage_of("c0")
    assert manifest.make_entry() == inherits((HEIR, 0, 5), (LIFE, 5, 8), (HEIR, 8, 10))
    collected = view((LIFE, {"c5": 3}), (HEIR, own), epoch=2, inherited=known)
    assert collected.extents == tuple(
        extent._replace(modified_ms=found.modified_ms)
        for extent, found in zip(manifest.extents, collected.extents, strict=True)
    )


def test_a_tombstone_ends_what_is_before_it() -> None:
    dead = (LIFE, {"c0": 5, "c5": 3})
    manifest = view(dead, (SECOND, {"t": 0}))
    assert not manifest.is_there
    assert garbage(manifest) == garbage_of("c0", "c5")
    again = view(dead, (SECOND, {"t": 0}), (LATER, {"c0": 2}))
    assert (spans(again), again.born) == ([(0, 2, "c")], LATER)
    assert garbage(again) == garbage_of("c0", "c5")
    heirs = view(dead, (HEIR, {"t": 0}), epoch=2, inherited=inherits((LIFE, 0, 8), closed=True))
    assert not heirs.is_there
    assert garbage(heirs) == garbage_of("c0", "c5")


def test_the_tombstone_of_a_former_epoch_is_garbage() -> None:
    manifest = view((LIFE, {"c0": 5}), (SECOND, {"t": 0}), epoch=2)
    assert {found.name for found in manifest.garbage} == {*garbage_of("c0"), SECOND.name("t")}


@pytest.mark.parametrize("whole", [True, False])
def test_a_sealed_segment_is_inherited_as_sealed(whole: bool) -> None:
    known = inherits((LIFE, 0, 8), closed=True)
    content = {"s": 8} if whole else {"c0": 5, "c5": 3}
    manifest = view((LIFE, {**content, "c8": 0}), epoch=2, inherited=known)
    assert (manifest.size_bytes, manifest.marked, manifest.sealed) == (8, True, whole)
    assert garbage(manifest) == garbage_of("c8")  # recorded in the epoch manifest
    assert view(epoch=2, inherited=inherits(closed=True)).is_there


def test_a_late_whole_seals_nothing_that_was_inherited_open() -> None:
    known = inherits((LIFE, 0, 5))
    manifest = view((LIFE, {"c0": 5, "c5": 3, "s": 8}), epoch=2, inherited=known)
    assert (manifest.size_bytes, manifest.is_closed) == (5, False)


def test_the_objects_of_format_1_are_refused() -> None:
    for name in (chunk_name(0), make_merged_name(0, 5), "s"):
        with pytest.raises(Invalid, match="format version 1"):
            read_manifest([ObjectInfo(f"{FOLDER}/{name}", 5)], FOLDER)


def test_t71_an_object_of_which_a_part_is_still_needed_is_no_garbage() -> None:
    """An object is not garbage while a part of it is needed."""
    former, other, own = Generation(2, 1), Generation(1, 1), Generation(3, 1)
    inherited = ManifestEntry((Span(former, 0, 5), Span(other, 5, 9), Span(former, 9, 20)))
    objects = objects_in(other, c5=4) + objects_in(former, m0_20=20)
    manifest = read_manifest(objects, FOLDER, 3, inherited)
    assert spans(manifest) == [(0, 5, "m"), (5, 9, "c"), (9, 20, "m")]
    merged = manifest.with_merged(0, 9, 4, own)
    assert merged is not None
    assert garbage(merged) == {name_in(other, "c5")}
    assert garbage(read_manifest([*objects, *objects_in(own, m0_9=9)], FOLDER, 3, inherited)) == {
        name_in(other, "c5")
    }
    last = merged.with_merged(0, 20, 5, own)
    assert last is not None
    assert name_in(former, "m0_20") in garbage(last)
