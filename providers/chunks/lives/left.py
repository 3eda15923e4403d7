"""What an epoch leaves at its end: the chains that its successor would have to list.

    <cluster folder>/<broker>/.inherited/<number, 20 digits>.left           the chains
    <cluster folder>/<broker>/.inherited/<number, 20 digits>.left.<shard>   some of them

It is made by an epoch that acknowledges nothing any more, so it says all that was ever acknowledged
below it. It is an offer: who cannot read it, or finds that a later epoch has said what it inherits,
lists as after a crash (`docs/formats/chunk-log.md`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.providers.chunks.lives.chain import Chain, Garbage
from tieredstore.providers.chunks.lives.extents import Extent, keep_extents
from tieredstore.providers.chunks.lives.inheritance import (
    FORMAT_VERSION,
    GROUPS_FORMAT_VERSION,
    SortKey,
    choose_format,
    decompress,
    left_name,
    sort_key,
)
from tieredstore.providers.chunks.lives.names import Life

_SHARD_BYTES = 4 << 20
_FEW_UNSURE = 32
_PAGE_KEYS = 1_000
_log = logging.getLogger(__name__)


class Left(NamedTuple):
    """chains: of all segments that are there, or of which there is garbage. unsure: the segments
    whose chains the epoch did not know at its end, to be listed."""

    chains: Mapping[SegmentId, Chain]
    unsure: tuple[SegmentId, ...] = ()

    @property
    def saves_listing(self) -> bool:
        """Whether the unsure segments are listed with less than a listing of all takes."""
        objects = sum(len(chain.extents) + len(chain.garbage) for chain in self.chains.values())
        return len(self.unsure) <= max(_FEW_UNSURE, objects // _PAGE_KEYS)


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    path: str
    type: int
    base_offset: int
    is_sealed: bool
    is_marked: bool
    born: Life | None
    extents: tuple[Extent, ...]
    garbage: tuple[Garbage, ...]


class _Content(msgspec.Struct, frozen=True):
    """shards: how many objects beside this one have the segments, 0: it has them itself."""

    format: int
    epoch: int
    shards: int = 0
    unsure: tuple[SortKey, ...] = ()
    segments: tuple[_Segment, ...] = ()


def encode_left(
    number: int, left: Left, shard_bytes: int = _SHARD_BYTES, *, has_groups: bool = False
) -> Iterable[tuple[str, bytes]]:
    """Yield name and content of the objects that say what epoch `number` leaves, in the order in
    which they are to be made: the one that makes the others count is the last. has_groups: as of
    its inheritance."""
    version = choose_format(has_groups=has_groups)
    unsure = tuple(map(sort_key, left.unsure))
    shards = 0
    batch: list[msgspec.Raw] = []
    length = 0
    for id in sorted(left.chains, key=sort_key):  # noqa: A001 - the contract's name
        entry = msgspec.json.encode(_make_entry(id, left.chains[id]))
        if batch and length + len(entry) > shard_bytes:
            yield left_name(number, shards), _encode(version, number, batch)
            shards += 1
            batch, length = [], 0
        batch.append(msgspec.Raw(entry))
        length += len(entry)
    if shards:
        yield left_name(number, shards), _encode(version, number, batch)
        yield left_name(number), _encode(version, number, [], shards=shards + 1, unsure=unsure)
    else:
        yield left_name(number), _encode(version, number, batch, unsure=unsure)


def decode_left(number: int, read: Callable[[str], bytes | None]) -> Left | None:
    """Read what epoch `number` has left, by a function that returns the content of an object of
    the folder `.inherited`, None without one; None when there is nothing that can be used. Raises
    what `read` raises."""
    head = _read(number, left_name(number), read)
    if head is None:
        return None
    chains: dict[SegmentId, Chain] = {}
    shards = [left_name(number, shard) for shard in range(head.shards)]
    try:
        _take_chains(number, head, chains)
        for name in shards:  # one after the other: of each the chains are a small part
            part = _read(number, name, read)
            if part is None:
                return None
            _take_chains(number, part, chains)
        return Left(chains, tuple(map(_make_id, head.unsure)))
    except ValueError as error:
        _log.warning("what epoch %d has left names no segment: %s", number, error)
        return None


def _take_chains(number: int, part: _Content, chains: dict[SegmentId, Chain]) -> None:
    for found in part.segments:
        chains[_make_id((found.path, found.type, found.base_offset))] = Chain(
            keep_extents(found.extents),
            found.is_sealed,
            found.is_marked,
            found.garbage,
            epoch=number,
            born=found.born,
        )


def _make_entry(id: SegmentId, chain: Chain) -> _Segment:
    extents = tuple(chain.extents)
    return _Segment(*sort_key(id), chain.sealed, chain.marked, chain.born, extents, chain.garbage)


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
