"""Tests of group objects: names, indexes, and extents in segment manifests."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.segment import FileSegmentType, SegmentId, order_in_groups
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.groups import (
    RUNS_LEVEL,
    WRITES_LEVEL,
    Group,
    GroupPiece,
    make_group,
    parse_group_name,
    read_group,
    sort_key,
)
from tieredstore.providers.chunks.manifests.names import Generation, make_key
from tieredstore.providers.chunks.manifests.segment_manifest import (
    ManifestEntry,
    SegmentManifest,
    Span,
    read_manifest,
)

LOG = SegmentId("b/T/0", FileSegmentType.COMMIT_LOG, 0)
FOLDER = "C/b/T/0/COMMIT_LOG/cfcd208400000000000000000000"
EPOCH = 7

sequences = st.integers(0, 9_999_999_999)
segment_ids = st.builds(
    SegmentId,
    st.sampled_from(["b/T/0", "b/T/10", "b/%RETRY%g/1", "b/é/2"]),
    st.sampled_from([FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE]),
    st.integers(0, 2**63 - 1),
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    ids = draw(st.lists(segment_ids, min_size=1, max_size=6))
    pieces = []
    for id in sorted(ids, key=sort_key):  # noqa: A001
        start = draw(st.integers(0, 2**40))
        length = draw(st.integers(1, 1_000))
        crc = draw(st.integers(0, 2**32 - 1))
        generation = Generation(EPOCH, draw(sequences))
        pieces.append(GroupPiece(id, generation, start, start + length, crc))
    level = draw(st.sampled_from([WRITES_LEVEL, RUNS_LEVEL]))
    return make_group(level, Generation(EPOCH, draw(sequences)), pieces)


@given(groups())
def test_name_and_index_tell_all_of_a_group(group: Group) -> None:
    name = parse_group_name(str(group.name))
    assert name == group.name
    assert name is not None
    assert read_group(name, group.size_bytes, group.packed_index) == group
    assert all(name.may_have(piece.id.path) for piece in group.pieces)


@given(groups(), st.text(max_size=20))
def test_a_queue_that_a_name_leaves_out_is_not_in_the_group(group: Group, path: str) -> None:
    between = group.name.first <= order_in_groups(path) <= group.name.last
    assert group.name.may_have(path) == between


@given(groups())
def test_pieces_lie_one_behind_the_other_in_the_object(group: Group) -> None:
    position = 0
    found = list(group.make_extents(5))
    for piece, (id, extent) in zip(group.pieces, found, strict=True):  # noqa: A001
        assert id == piece.id
        assert (extent.start, extent.end, extent.skip) == (piece.start, piece.end, position)
        assert (extent.generation, extent.crc, extent.modified_ms) == (
            piece.generation,
            piece.crc,
            5,
        )
        assert extent.is_chunk == (group.name.level == WRITES_LEVEL)
        assert extent.is_grouped
        assert extent.is_shared
        assert not extent.is_carried
        assert make_key(FOLDER, extent.name) == f"C/b/.groups/{group.name}"
        position += piece.length
    assert group.size_bytes == position + group.name.index_bytes


@pytest.mark.parametrize(
    "name",
    [
        *("", "0", "2.0000000001.0000000001.00000000-00000000.9", "x"),
        "0.1.1.00000000-00000000.9",
        "0.0000000001.0000000001.00000000-00000000.09",
        "0.0000000001.0000000001.0000000G-00000000.9",
        "0.0000000001.0000000001.00000000-00000000.9/x",
    ],
)
def test_other_names_are_no_groups(name: str) -> None:
    assert parse_group_name(name) is None


def _group() -> Group:
    return make_group(
        WRITES_LEVEL, Generation(EPOCH, 9), [GroupPiece(LOG, Generation(EPOCH, 3), 0, 5, 1)]
    )


def _index(**changes: object) -> bytes:
    row = [0, 0, 3, 0, 5, 1]
    content = {"format": 3, "epoch": EPOCH, "queues": [["b/T/0", [row]]]}
    return zlib.compress(msgspec.json.encode(content | changes))


@pytest.mark.parametrize(
    "index",
    [
        *(b"", b"no index", _group().packed_index[:-1], zlib.compress(b"{}")),
        _index(epoch=6),
        _index(queues=[["b/T/0", [[2, 0, 3, 0, 5, 1]]]]),
        _index(queues=[["b/T/0", [[0, 0, 3, 5, 5, 1]]]]),
        _index(queues=[["b/T/0", [[0, 0, 3, 0, 6, 1]]]]),
        _index(queues=[["b/T/0", [["0", 0, 3, 0, 5, 1]]]]),
        _index(queues=[["b/T/0", [[0, 0, 3, 2**63, 2**63 + 5, 1]]]]),
        _index(queues=[["b/T/0", [[0, 0, 3, 0, 5, 2**32]]]]),
    ],
)
def test_a_damaged_index_is_told_with_the_name_of_its_group(index: bytes) -> None:
    group = _group()
    with pytest.raises(Corrupt, match=str(group.name)) as told:
        read_group(group.name, group.size_bytes, index)
    assert "epoch manifest" not in str(told.value)


def test_an_object_of_another_length_is_damaged() -> None:
    group = _group()
    with pytest.raises(Corrupt, match="expected"):
        read_group(group.name, group.size_bytes + 1, group.packed_index)


def test_another_format_is_refused() -> None:
    with pytest.raises(Invalid, match="format version 4"):
        read_group(_group().name, _group().size_bytes, _index(format=4))


class TestChain:
    """Segment manifests with extents in group objects follow the rules of segment generations."""

    def extents(
        self, *pieces: tuple[int, int, int], level: int = WRITES_LEVEL, epoch: int = EPOCH
    ) -> list[Extent]:
        found = []
        for number, (sequence, start, end) in enumerate(pieces):
            piece = GroupPiece(LOG, Generation(epoch, sequence), start, end, 1)
            group = make_group(level, Generation(epoch, 100 + number), [piece])
            found += [extent for _, extent in group.make_extents(0)]
        return found

    def read(
        self, extents: list[Extent], inherited: ManifestEntry | None = None
    ) -> SegmentManifest:
        return read_manifest((), FOLDER, EPOCH, inherited or ManifestEntry(), carried=extents)

    def test_pieces_of_groups_follow_each_other(self) -> None:
        manifest = self.read(self.extents((1, 0, 5), (1, 5, 9)))
        assert (manifest.size_bytes, len(manifest.extents), manifest.holes) == (9, 2, ())
        assert manifest.make_entry().spans == (Span(Generation(EPOCH, 1), 0, 9),)

    def test_a_run_goes_before_the_writes_that_it_covers(self) -> None:
        runs = self.extents((1, 0, 9), level=RUNS_LEVEL)
        manifest = self.read([*self.extents((1, 0, 5), (1, 5, 9)), *runs])
        assert manifest.extents == tuple(runs)
        assert manifest.garbage == ()

    def test_a_write_in_a_life_that_was_left_does_not_count(self) -> None:
        manifest = self.read(self.extents((1, 0, 5), (1, 5, 9), (2, 5, 6)))
        assert [extent.end for extent in manifest.extents] == [5, 6]

    def test_of_an_older_epoch_what_is_inherited_counts(self) -> None:
        old = self.extents((1, 0, 5), (1, 5, 9), epoch=EPOCH - 1)
        spans = (Span(Generation(EPOCH - 1, 1), 0, 7),)
        manifest = self.read(old, ManifestEntry(spans))
        assert manifest.size_bytes == 7
        assert [extent.crc for extent in manifest.extents] == [1, -1]
        assert self.read(old).size_bytes == 0

    def test_what_a_later_epoch_wrote_is_told(self) -> None:
        assert self.read(self.extents((1, 0, 5), epoch=EPOCH + 1)).later == EPOCH + 1

    def test_a_run_takes_the_place_of_what_it_was_made_of_alone(self) -> None:
        writes = self.extents((1, 0, 5), (1, 5, 9))
        manifest = self.read(writes)
        run = self.extents((1, 0, 9), level=RUNS_LEVEL)[0]
        merged = manifest.with_run(run, writes)
        assert merged is not None
        assert merged.extents == (run,)
        assert merged.garbage == ()
        others = self.extents((2, 0, 5), (2, 5, 9))
        assert self.read(others).with_run(run, writes) is None
