"""An epoch manifest can be encoded into objects and decoded again."""

from __future__ import annotations

import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    EpochManifestName,
    decode_epoch_manifest,
    encode_epoch_manifest,
    epoch_manifest_name,
    parse_epoch_manifest_name,
)
from tieredstore.providers.chunks.manifests.names import Generation, parse_object_name
from tieredstore.providers.chunks.manifests.segment_manifest import ManifestEntry, Span

generations = st.builds(Generation, st.integers(0, 9_999_999_999), st.integers(0, 9_999_999_999))
sizes = st.integers(0, 2**63 - 1)
inherited_segments = st.builds(
    ManifestEntry,
    st.lists(st.builds(Span, generations, sizes, sizes), max_size=4).map(tuple),
    st.booleans(),
)
segment_ids = st.builds(
    SegmentId,
    st.sampled_from(["b/T/0", "b/T/10", "b/%RETRY%g/1", "b/é/2"]),
    st.sampled_from(FileSegmentType),
    sizes,
)
tiers = st.dictionaries(segment_ids, inherited_segments, max_size=12)
ABSENT = SegmentId("b/other/0", FileSegmentType.INDEX, 7)


@given(tiers, st.integers(1, 400), st.integers(1, 2**40))
def test_what_is_written_is_read(
    tier: dict[SegmentId, ManifestEntry], shard_bytes: int, number: int
) -> None:
    objects = dict(encode_epoch_manifest(number, tier, shard_bytes))
    assert list(objects)[-1] == epoch_manifest_name(number)  # shards come before what names them
    found = decode_epoch_manifest(number, objects.__getitem__)
    assert found.number == number
    for segment_id, expected in tier.items():
        assert found.find(segment_id) == expected
    assert found.find(ABSENT) == ManifestEntry()


def test_a_reader_of_one_queue_reads_one_shard() -> None:
    tier = {
        SegmentId(f"b/T/{queue}", FileSegmentType.COMMIT_LOG, base): ManifestEntry(
            (Span(Generation(1, queue + 1), 0, 100),)
        )
        for queue in range(50)
        for base in (0, 100)
    }
    objects = dict(encode_epoch_manifest(3, tier, 500))
    assert len(objects) > 5
    read: list[str] = []

    def get(name: str) -> bytes:
        read.append(name)
        return objects[name]

    found = decode_epoch_manifest(3, get)
    for _ in range(2):
        for base in (0, 100):
            found.find(SegmentId("b/T/7", FileSegmentType.COMMIT_LOG, base))
    assert read[0] == epoch_manifest_name(3)
    assert len(read) == len(set(read)) == 2


def test_nothing_to_inherit_is_an_object_too() -> None:
    [(name, content)] = encode_epoch_manifest(1, {})
    assert name == f"{1:020d}"
    assert decode_epoch_manifest(1, lambda _: content).find(ABSENT) == ManifestEntry()


def pack(**content: object) -> bytes:
    return zlib.compress(orjson.dumps(content))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "not an epoch manifest"),
        (b"{}", "not an epoch manifest"),
        (pack(), "not an epoch manifest"),
        (pack(format=2, epoch=1, segments=[["b/T/0", 0, 0]]), "not an epoch manifest"),
        (pack(format=2, epoch=1, segments=[["b/T/0", 9, 0, False, []]]), "type, found 9"),
        (pack(format=2, epoch=2), "expected epoch 1, found 2"),
        (encode_epoch_manifest(1, {ABSENT: ManifestEntry()})[0][1][:-3], "not an epoch manifest"),
    ],
)
def test_i06_damage_is_told(content: bytes, what: str) -> None:
    with pytest.raises(Corrupt, match=what):
        decode_epoch_manifest(1, lambda _: content)


def test_w05_another_format_is_refused() -> None:
    with pytest.raises(Invalid, match="format version 4, this program reads 2 and 3"):
        decode_epoch_manifest(1, lambda _: pack(format=4, epoch=1))


def test_a_field_that_is_not_known_is_told() -> None:
    with pytest.raises(Corrupt, match="groups"):
        decode_epoch_manifest(1, lambda _: pack(format=2, epoch=1, groups=True))


def test_names() -> None:
    assert parse_epoch_manifest_name(epoch_manifest_name(7)) == EpochManifestName(7, is_main=True)
    assert parse_epoch_manifest_name(epoch_manifest_name(7, 3)) == EpochManifestName(
        7, is_main=False
    )
    for name in ("7", f"{7:020d}.3", f"{7:020d}.released", ""):
        assert parse_epoch_manifest_name(name) is None


@given(generations, st.sampled_from(["c.{0:020d}", "m.{0:020d}-{1:020d}", "s", "t"]), sizes, sizes)
def test_names_of_objects_tell_their_life(
    generation: Generation, form: str, start: int, end: int
) -> None:
    found = parse_object_name(generation.name(form.format(start, end)))
    assert found is not None
    assert (found.generation, found.kind) == (generation, form[0])
    assert found.start == (start if form[1:] else 0)
    for wrong in (
        form.format(start, end),
        f"{generation}",
        f"{generation}/x",
        f"{generation}/c.{start}x",
    ):
        assert parse_object_name(wrong) is None


@given(generations, generations)
def test_names_sort_as_lives_do(one: Generation, other: Generation) -> None:
    assert (str(one) < str(other)) == (one < other)
