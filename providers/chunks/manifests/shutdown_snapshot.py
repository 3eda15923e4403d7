"""Shutdown snapshot of an epoch: the segment manifests that its successor would have to list.

    <cluster folder>/<broker>/.inherited/<number, 20 digits>.left           segment manifests
    <cluster folder>/<broker>/.inherited/<number, 20 digits>.left.<shard>   some of them

An epoch writes the snapshot after its last acknowledgement, so the snapshot contains all
acknowledged writes. It is optional. Without a usable snapshot, the successor lists the tier as
after a crash (`docs/formats/chunk-log.md`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    FORMAT_VERSION,
    GROUPS_FORMAT_VERSION,
    SortKey,
    choose_format,
    decompress,
    snapshot_name,
    sort_key,
)
from tieredstore.providers.chunks.manifests.extents import Extent, keep_extents
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.segment_manifest import Garbage, SegmentManifest

_SHARD_BYTES = 4 << 20
_FEW_UNSURE = 32
_PAGE_KEYS = 1_000
_log = logging.getLogger(__name__)


class ShutdownSnapshot(NamedTuple):
    """Content of a shutdown snapshot. `manifests`: manifests of all segments that exist or have
    garbage. `unsure`: segments that have to be listed, because the epoch did not know their
    manifest."""

    manifests: Mapping[SegmentId, SegmentManifest]
    unsure: tuple[SegmentId, ...] = ()

    @property
    def saves_listing(self) -> bool:
        """Whether listing the `unsure` segments is cheaper than listing the whole broker."""
        objects = sum(
            len(manifest.extents) + len(manifest.garbage) for manifest in self.manifests.values()
        )
        return len(self.unsure) <= max(_FEW_UNSURE, objects // _PAGE_KEYS)


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    path: str
    type: int
    base_offset: int
    is_sealed: bool
    is_marked: bool
    born: Generation | None
    extents: tuple[Extent, ...]
    garbage: tuple[Garbage, ...]


class _Content(msgspec.Struct, frozen=True):
    """Encoded form of a shutdown snapshot. `shards`: number of further objects with the segments,
    or 0 if this object contains them."""

    format: int
    epoch: int
    shards: int = 0
    unsure: tuple[SortKey, ...] = ()
    segments: tuple[_Segment, ...] = ()


def encode_snapshot(
    number: int,
    snapshot: ShutdownSnapshot,
    shard_bytes: int = _SHARD_BYTES,
    *,
    has_groups: bool = False,
) -> Iterable[tuple[str, bytes]]:
    """Yield names and contents of the objects of the shutdown snapshot of epoch `number`. They must
    be created in this order, because the last one makes the others valid. `has_groups`: as in the
    epoch manifest."""
    version = choose_format(has_groups=has_groups)
    unsure = tuple(map(sort_key, snapshot.unsure))
    shards = 0
    batch: list[msgspec.Raw] = []
    length = 0
    for id in sorted(snapshot.manifests, key=sort_key):  # noqa: A001 - the contract's name
        entry = msgspec.json.encode(_make_entry(id, snapshot.manifests[id]))
        if batch and length + len(entry) > shard_bytes:
            yield snapshot_name(number, shards), _encode(version, number, batch)
            shards += 1
            batch, length = [], 0
        batch.append(msgspec.Raw(entry))
        length += len(entry)
    if shards:
        yield snapshot_name(number, shards), _encode(version, number, batch)
        yield snapshot_name(number), _encode(version, number, [], shards=shards + 1, unsure=unsure)
    else:
        yield snapshot_name(number), _encode(version, number, batch, unsure=unsure)


def decode_snapshot(number: int, read: Callable[[str], bytes | None]) -> ShutdownSnapshot | None:
    """Read the shutdown snapshot of epoch `number`. `read` returns the content of an object of the
    folder `.inherited`, or None if it is missing. Returns None without a usable snapshot. Raises
    the errors of `read`."""
    head = _read(number, snapshot_name(number), read)
    if head is None:
        return None
    manifests: dict[SegmentId, SegmentManifest] = {}
    shards = [snapshot_name(number, shard) for shard in range(head.shards)]
    try:
        _take_manifests(number, head, manifests)
        for name in shards:  # One after the other, since the manifests are a small part of each.
            part = _read(number, name, read)
            if part is None:
                return None
            _take_manifests(number, part, manifests)
        return ShutdownSnapshot(manifests, tuple(map(_make_id, head.unsure)))
    except ValueError as error:
        _log.warning(
            "the shutdown snapshot of epoch %d is ignored, since it names no segment: %s",
            number,
            error,
        )
        return None


def _take_manifests(
    number: int, part: _Content, manifests: dict[SegmentId, SegmentManifest]
) -> None:
    for found in part.segments:
        manifests[_make_id((found.path, found.type, found.base_offset))] = SegmentManifest(
            keep_extents(found.extents),
            found.is_sealed,
            found.is_marked,
            found.garbage,
            epoch=number,
            born=found.born,
        )


def _make_entry(id: SegmentId, manifest: SegmentManifest) -> _Segment:
    extents = tuple(manifest.extents)
    return _Segment(
        *sort_key(id), manifest.sealed, manifest.marked, manifest.born, extents, manifest.garbage
    )


def _make_id(key: SortKey) -> SegmentId:
    path, kind, base_offset = key
    return SegmentId(path, FileSegmentType(kind), base_offset)


def _encode(
    version: int,
    number: int,
    segments: list[msgspec.Raw],
    *,
    shards: int = 0,
    unsure: tuple[SortKey, ...] = (),
) -> bytes:
    content = {
        "format": version,
        "epoch": number,
        "shards": shards,
        "unsure": unsure,
        "segments": segments,
    }
    return zlib.compress(msgspec.json.encode(content), 6)


def _read(number: int, name: str, read: Callable[[str], bytes | None]) -> _Content | None:
    packed = read(name)
    if packed is None:
        return None
    try:
        content, is_whole = decompress(packed, name, "packed")
        found = msgspec.json.decode(content, type=_Content) if is_whole else None
    except (Corrupt, msgspec.DecodeError) as error:
        _log.warning("%s: not what an epoch leaves: %s", name, error)
        return None
    is_known = found is not None and found.format in {FORMAT_VERSION, GROUPS_FORMAT_VERSION}
    if found is None or not is_known or found.epoch != number:
        _log.warning("%s: not what epoch %d leaves, in a format that is read", name, number)
        return None
    return found
