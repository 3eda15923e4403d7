"""The chunk log over an object map that fails, and in crashes between any two requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import pytest

from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegmentType,
    SegmentId,
    UnknownWrite,
    Written,
)
from tieredstore.errors import Busy, Corrupt, Fenced, Unavailable
from tieredstore.providers.chunk_chain import Chain, chunk_name, merged_name, read_chain
from tieredstore.providers.chunk_sketch import ChunkFileSegment, ChunkSketchProvider
from tieredstore.providers.object_map import MemoryObjectMap, ObjectInfo
from tieredstore.testing.faults import SimulatedCrash

T = TypeVar("T")
ID = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)


class FaultyObjects(MemoryObjectMap):
    """`plan[n]` is what happens at the n-th changing call, from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: dict[int, str] = {}
        self.count = 0
        self.list_fails = False
        self.acknowledged = 0
        self.is_sealed = False

    def _change(self, action: Callable[[], T]) -> T:
        self.count += 1
        step = self.plan.get(self.count)
        if step == "crash before":
            raise SimulatedCrash
        if step == "conflict":
            raise Busy("409")
        if step == "fail":
            raise Unavailable("503")
        result = action()
        if step == "crash after":
            raise SimulatedCrash
        if step == "lose reply":
            raise Unavailable("time-out")
        return result

    def put_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str]) -> bool:
        return self._change(lambda: super(FaultyObjects, self).put_if_absent(key, data, metadata))

    def delete(self, key: str) -> None:
        self._change(lambda: super(FaultyObjects, self).delete(key))

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        if self.list_fails:
            raise Unavailable("500")
        return super().list(prefix)


@pytest.fixture
def objects() -> FaultyObjects:
    return FaultyObjects()


@pytest.fixture
def segment(objects: FaultyObjects) -> ChunkFileSegment:
    return ChunkSketchProvider(objects, writer="w1").open(ID)


def names(objects: FaultyObjects) -> list[str]:
    return [found.key.rpartition("/")[2] for found in objects.list("broker-a/TopicA")]


class TestRequests:
    def test_o03_a_lost_reply_of_our_own_write_is_written(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        objects.plan = {1: "lose reply", 3: "lose reply"}
        assert segment.write(0, [b"abc"]) == Written(3)
        assert segment.write(3, [b"def"]) == Written(6)
        assert bytes(segment.read(0, 6)) == b"abcdef"
        assert names(objects) == [chunk_name(0), chunk_name(3)]

    def test_o03_a_lost_reply_of_another_writer_is_fenced(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        other = ChunkSketchProvider(objects, writer="w2").open(ID)
        objects.plan = {2: "fail"}
        assert other.write(0, [b"abc"]) == Written(3)
        assert segment.write(0, [b"abc"]) == FencedWrite(3, "w2")

    def test_o03_a_former_write_of_ours_is_for_the_caller_to_compare(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        objects.plan = dict.fromkeys(range(1, 6), "fail") | {1: "lose reply"}
        objects.plan |= {2: "fail", 3: "fail", 4: "fail", 5: "fail"}
        assert isinstance(segment.write(0, [b"abc"]), UnknownWrite)
        assert segment.size() == 3
        assert isinstance(segment.write(0, [b"abcdef"]), UnknownWrite)
        assert segment.write(3, [b"def"]) == Written(6)
        assert bytes(segment.read(0, 6)) == b"abcdef"

    def test_o04_a_conflict_is_tried_again(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        objects.plan = {1: "conflict", 2: "conflict"}
        assert segment.write(0, [b"abc"]) == Written(3)

    def test_o04_endless_conflicts_end(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        objects.plan = dict.fromkeys(range(1, 100), "conflict")
        assert isinstance(segment.write(0, [b"abc"]), UnknownWrite)
        assert objects.count < 10

    def test_o04_an_object_that_is_gone_is_listed_anew(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        segment.write(0, [b"abc"])
        segment.write(3, [b"def"])
        assert bytes(segment.read(0, 6)) == b"abcdef"
        ChunkSketchProvider(objects).open(ID).merge()
        assert names(objects) == [merged_name(0, 6)]
        assert bytes(segment.read(0, 6)) == b"abcdef"

    def test_o07_a_failing_listing_is_not_an_empty_segment(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        segment.write(0, [b"abc"])
        objects.list_fails = True
        with pytest.raises(Unavailable):
            segment.size()
        with pytest.raises(Unavailable):
            ChunkSketchProvider(objects).list()

    def test_w01_a_writer_whose_objects_were_merged_away_is_fenced(
        self, segment: ChunkFileSegment, objects: FaultyObjects
    ) -> None:
        segment.write(0, [b"abc"])
        successor = ChunkSketchProvider(objects, writer="w2").open(ID)
        successor.write(3, [b"def"])
        successor.write(6, [b"ghi"])
        successor.merge()
        # the zombie still believes that position 3 is free, and its key is free again
        assert isinstance(segment.write(3, [b"zombie"]), FencedWrite)
        assert bytes(successor.read(0, 9)) == b"abcdefghi"
        assert successor.size() == 9

    def test_w01_a_writer_that_was_taken_over_is_told(self, objects: FaultyObjects) -> None:
        first = ChunkSketchProvider(objects, writer="w1").acquire_writer("broker-a")
        with pytest.raises(Fenced, match="w1"):
            ChunkSketchProvider(objects, writer="w2").acquire_writer("broker-a")
        second = ChunkSketchProvider(objects, writer="w2").acquire_writer(
            "broker-a", take_over=True
        )
        with pytest.raises(Fenced, match="w2"):
            first.check()
        second.check()


class TestChain:
    def chain(self, **sizes: int) -> Chain:
        return read_chain([ObjectInfo(f"f/{name}", size) for name, size in sizes.items()], "f")

    def test_the_longest_object_at_a_position_counts(self) -> None:
        chain = self.chain(
            **{
                chunk_name(0): 5,
                chunk_name(5): 5,
                merged_name(0, 5): 5,
                merged_name(0, 10): 10,
                chunk_name(10): 1,
            }
        )
        assert [extent.name for extent in chain.extents] == [merged_name(0, 10), chunk_name(10)]
        assert chain.size_bytes == 11
        assert set(chain.garbage) == {chunk_name(0), chunk_name(5), merged_name(0, 5)}

    def test_o09_bytes_behind_a_hole_are_an_error_with_its_offset(self) -> None:
        with pytest.raises(Corrupt, match="nothing at position 5") as caught:
            self.chain(**{chunk_name(0): 5, chunk_name(8): 3})
        assert caught.value.offset == 5
        with pytest.raises(Corrupt):
            self.chain(**{merged_name(5, 10): 5})

    def test_o07_a_key_listed_twice_counts_once(self) -> None:
        found = [ObjectInfo(f"f/{chunk_name(0)}", 5)] * 2
        assert read_chain(found, "f").size_bytes == 5

    def test_a_merged_object_of_the_wrong_size_is_an_error(self) -> None:
        with pytest.raises(Corrupt, match="expected 10 bytes, found 9"):
            self.chain(**{merged_name(0, 10): 9})

    def test_foreign_objects_are_left_alone(self) -> None:
        chain = self.chain(**{chunk_name(0): 5, "README": 3, "c.5": 1})
        assert chain.size_bytes == 5
        assert chain.garbage == ()

    def test_a_seal_needs_its_marker_only(self) -> None:
        chain = self.chain(s=10, **{chunk_name(0): 10, chunk_name(10): 0})
        assert chain.sealed
        assert chain.garbage == (chunk_name(0),)


WRITES = (b"abc", b"d", b"efghij", b"k" * 20)


def test_w03_a_deletion_that_was_cut_short_leaves_no_hole() -> None:
    for number in range(1, 5):
        objects = FaultyObjects()
        segment = ChunkSketchProvider(objects).open(ID)
        for position in (0, 3, 6, 9):
            segment.write(position, [b"abc"])
        objects.plan = {objects.count + number: "crash before"}
        with pytest.raises(SimulatedCrash):
            segment.delete()
        again = ChunkSketchProvider(objects).open(ID)
        assert again.size() == 3 * (5 - number)
        again.delete()
        assert names(objects) == []


def scenario(objects: FaultyObjects) -> None:
    segment = ChunkSketchProvider(objects, writer="w1").open(ID)
    position = 0
    for number, data in enumerate(WRITES):
        assert segment.write(position, [data]) == Written(position + len(data))
        objects.acknowledged = position = position + len(data)
        if number == 2:
            segment.merge()
    segment.seal()
    objects.is_sealed = True
    segment.delete()


def number_of_calls() -> int:
    objects = FaultyObjects()
    scenario(objects)
    return objects.count


@pytest.mark.parametrize("step", ["crash before", "crash after"])
@pytest.mark.parametrize("number", range(1, number_of_calls() + 1))
def test_a_crash_between_any_two_requests_loses_nothing(number: int, step: str) -> None:
    objects = FaultyObjects()
    objects.plan = {number: step}
    with pytest.raises(SimulatedCrash):
        scenario(objects)
    objects.plan = {}
    whole = b"".join(WRITES)
    provider = ChunkSketchProvider(objects, writer="w2")
    segment = provider.open(ID)
    if objects.is_sealed:  # the deletion was under way
        segment.delete()
        assert names(objects) == []
        return
    size = segment.size()
    assert size >= objects.acknowledged
    assert bytes(segment.read(0, size)) == whole[:size]
    listing = next(iter(provider.list()), None)
    if listing is not None and listing.sealed:
        assert size == len(whole)
        assert isinstance(segment.write(size, [b"x"]), FencedWrite)
    else:
        assert segment.write(size, [b"more"]) == Written(size + 4)
        whole = whole[:size] + b"more"
    segment.seal()
    assert bytes(segment.read(0, len(whole))) == whole
    assert names(objects) == sorted([chunk_name(len(whole)), "s"])
