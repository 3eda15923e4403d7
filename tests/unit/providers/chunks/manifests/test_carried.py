"""Tests of units stored in the same object as their messages, and of their place in a segment
manifest."""

from __future__ import annotations

import pytest

from tieredstore.contracts.objects import ObjectInfo
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.listing import find_carried
from tieredstore.providers.chunks.manifests.names import (
    CarriedUnits,
    Generation,
    chunk_name,
    make_carrier_name,
    make_key,
    make_merged_name,
    parse_object_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import (
    ManifestEntry,
    SegmentManifest,
    Span,
    read_manifest,
)

QUEUE = "cluster/broker-a/TopicA/0"
PATH = "broker-a/TopicA/0"
LOG = f"{QUEUE}/COMMIT_LOG/leaf"
UNITS = f"{QUEUE}/CONSUME_QUEUE/leaf"
UNITS_ID = SegmentId(PATH, FileSegmentType.CONSUME_QUEUE, 0)


def carrier(
    start: int, end: int, first: int, last: int, *, base: int = 0, log: int = 1, units: int = 2
) -> ObjectInfo:
    """Return an object with bytes [start, end) of a commit log and units [first, last) of its
    consume queue. `log` and `units` are generation numbers in epoch 1."""
    name = make_carrier_name(start, end, CarriedUnits(base, Generation(1, units), first, last))
    return ObjectInfo(f"{LOG}/{Generation(1, log).name(name)}", end - start + last - first, start)


def own(sequence: int, name: str, size_bytes: int) -> ObjectInfo:
    return ObjectInfo(f"{UNITS}/{Generation(1, sequence).name(name)}", size_bytes)


def read_units(
    carriers: list[ObjectInfo],
    objects: list[ObjectInfo] = [],  # noqa: B006 - it is not changed
    epoch: int = 1,
    inherited: ManifestEntry | None = None,
) -> SegmentManifest:
    carried = find_carried(carriers, QUEUE, PATH).get(UNITS_ID, ())
    return read_manifest(objects, UNITS, epoch, inherited or ManifestEntry(), carried=carried)


def places(manifest: SegmentManifest) -> list[tuple[int, int]]:
    return [(extent.start, extent.end) for extent in manifest.extents]


class TestNames:
    def test_a_name_says_all_that_its_object_holds(self) -> None:
        units = CarriedUnits(2_000, Generation(7, 3), 40, 100)
        name = Generation(7, 2).name(make_carrier_name(500, 900, units))
        found = parse_object_name(name)
        assert found is not None
        assert (found.generation, found.kind, found.start, found.end) == (
            Generation(7, 2),
            "u",
            500,
            900,
        )
        assert found.units == units
        assert found.size_bytes == 460
        assert found.is_write

    @pytest.mark.parametrize("wrong", ["u.", f"u.{0:020d}-{5:020d}", "u@x"])
    def test_other_names_are_nothing(self, wrong: str) -> None:
        assert parse_object_name(Generation(1, 1).name(wrong)) is None

    def test_the_key_of_units_is_that_of_their_object(self) -> None:
        written = carrier(0, 100, 0, 20)
        ((extent,),) = find_carried([written], QUEUE, PATH).values()
        assert make_key(UNITS, extent.name) == written.key
        assert extent.skip == 100
        assert extent.generation == Generation(1, 2)
        assert (extent.is_chunk, extent.is_carried) == (True, True)

    def test_the_key_of_other_bytes_is_in_the_segments_folder(self) -> None:
        name = Generation(1, 2).name(chunk_name(0))
        assert make_key(UNITS, name) == f"{UNITS}/{name}"
        assert not Extent(0, 5, name).is_carried


class TestFinding:
    def test_units_are_told_by_segment(self) -> None:
        writes = [carrier(0, 100, 0, 20), carrier(100, 150, 0, 40, base=2_000, units=5)]
        found = find_carried(writes, QUEUE, PATH)
        assert {units.base_offset: len(found[units]) for units in found} == {0: 1, 2_000: 1}

    def test_an_object_that_is_listed_twice_counts_once(self) -> None:
        write = carrier(0, 100, 0, 20)
        ((extent,),) = find_carried([write, write], QUEUE, PATH).values()
        assert (extent.start, extent.end) == (0, 20)

    def test_an_object_with_another_length_has_no_units(self) -> None:
        write = carrier(0, 100, 0, 20)
        short = ObjectInfo(write.key, write.size_bytes - 1)
        assert find_carried([short], QUEUE, PATH) == {}

    def test_other_objects_have_none(self) -> None:
        generation = Generation(1, 1)
        names = [generation.name(chunk_name(0)), generation.name("s"), "x", f"{generation}/c.1/u"]
        assert find_carried([ObjectInfo(f"{LOG}/{n}", 5) for n in names], QUEUE, PATH) == {}


class TestChain:
    def test_units_come_from_the_writes_and_from_the_folder(self) -> None:
        manifest = read_units(
            [carrier(100, 200, 20, 60), carrier(0, 100, 0, 20)], [own(2, chunk_name(60), 20)]
        )
        assert places(manifest) == [(0, 20), (20, 60), (60, 80)]
        assert [extent.skip for extent in manifest.extents] == [100, 100, 0]
        assert manifest.born == Generation(1, 2)

    def test_a_run_goes_before_the_writes_that_it_was_made_of(self) -> None:
        manifest = read_units(
            [carrier(0, 100, 0, 20), carrier(100, 200, 20, 60)],
            [own(2, make_merged_name(0, 60), 60)],
        )
        assert [extent.is_carried for extent in manifest.extents] == [False]
        assert manifest.garbage == ()  # for the commit log to tell

    def test_the_commit_log_ends_before_the_units(self) -> None:
        manifest = read_manifest([carrier(0, 100, 0, 20), carrier(100, 150, 20, 40)], LOG, 1)
        assert places(manifest) == [(0, 100), (100, 150)]
        assert [extent.skip for extent in manifest.extents] == [0, 0]

    def test_units_without_an_answer_end_where_the_next_life_begins(self) -> None:
        late = carrier(100, 200, 20, 60)
        own_write = own(3, chunk_name(20), 20)
        manifest = read_units([carrier(0, 100, 0, 20), late], [own_write])
        assert places(manifest) == [(0, 20), (20, 40)]
        manifest = read_units(
            [carrier(0, 100, 0, 20), late, carrier(100, 130, 20, 40, log=4, units=3)]
        )
        assert places(manifest) == [(0, 20), (20, 40)]

    def test_a_tombstone_deletes_units_of_lives_before_it(self) -> None:
        tombstone = own(3, "t", 0)
        manifest = read_units([carrier(0, 100, 0, 20)], [tombstone])
        assert not manifest.is_there
        again = carrier(0, 100, 0, 20, log=5, units=4)
        assert places(read_units([carrier(0, 100, 0, 20), again], [tombstone])) == [(0, 20)]

    def test_what_is_inherited_of_them_is_named_by_their_own_life(self) -> None:
        writes = [carrier(0, 100, 0, 20), carrier(100, 200, 20, 60)]
        inherited = read_units(writes).make_entry()
        assert inherited == ManifestEntry((Span(Generation(1, 2), 0, 60),))
        late = carrier(200, 210, 60, 80)
        manifest = read_units([*writes, late], epoch=2, inherited=inherited)
        assert places(manifest) == [(0, 20), (20, 60)]
        assert not read_units(writes, epoch=2).is_there

    def test_a_lost_write_is_a_hole(self) -> None:
        manifest = read_units([carrier(0, 100, 0, 20), carrier(150, 200, 40, 60)])
        assert manifest.holes == ((20, 40),)

    def test_a_change_leaves_no_units_as_garbage(self) -> None:
        manifest = read_units([carrier(0, 100, 0, 20), carrier(100, 200, 20, 60)])
        merged = manifest.with_merged(0, 60, 9, Generation(1, 2))
        assert merged is not None
        assert (places(merged), merged.garbage) == ([(0, 60)], ())
        assert manifest.with_whole(9, Generation(1, 2)).garbage == ()
