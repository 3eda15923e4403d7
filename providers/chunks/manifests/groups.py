"""Group objects: bytes of many queues in one object, sorted by queue, followed by an index.

    <cluster folder>/<broker>/.groups/<level>.<epoch>.<sequence>.<first>-<last>.<index bytes>

A group consists of pieces. Each piece has bytes of one segment: one write in level 0, a merged run
in level 1. The rules for generations apply to pieces (`docs/formats/chunk-log.md`).
`<first>-<last>` are the sort positions of the first and last queue, so that a search for one queue
skips most groups. An epoch uses each sequence number once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from tieredstore.contracts.segment import FileSegmentType, SegmentId, order_in_groups
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.manifests.epoch_manifest import GROUPS_FORMAT_VERSION, decompress
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import Generation, make_grouped_name

WRITES_LEVEL = 0
RUNS_LEVEL = 1
_MAX_END, _MAX_CRC = 2**63, 2**32
_NAME = re.compile(
    r"([01])\.([0-9]{10})\.([0-9]{10})\.([0-9a-f]{8})-([0-9a-f]{8})\.([1-9][0-9]{0,9})", re.ASCII
)


class GroupName(NamedTuple):
    """Parsed name of a group. `first`, `last`: sort positions of its first and last queue.
    `index_bytes`: length of the index at the end."""

    level: int
    generation: Generation
    first: int
    last: int
    index_bytes: int

    def __str__(self) -> str:
        epoch, sequence = self.generation
        queues = f"{self.first:08x}-{self.last:08x}"
        return f"{self.level}.{epoch:010d}.{sequence:010d}.{queues}.{self.index_bytes}"

    def may_have(self, path: str) -> bool:
        """Return whether the group may contain bytes of a queue."""
        return self.first <= order_in_groups(path) <= self.last


def parse_group_name(name: str) -> GroupName | None:
    """Parse a name in the folder of the groups. Returns None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    generation = Generation(int(match[2]), int(match[3]))
    return GroupName(int(match[1]), generation, int(match[4], 16), int(match[5], 16), int(match[6]))


class GroupPiece(NamedTuple):
    """Bytes [start, end) of a segment in a group, written in `generation`. `crc`: CRC-32 of these
    bytes."""

    id: SegmentId
    generation: Generation
    start: int
    end: int
    crc: int

    @property
    def length(self) -> int:
        return self.end - self.start


class _Index(msgspec.Struct, frozen=True):
    """Index of a group. `queues`: (path, [(type, base offset, sequence, start, end, crc)]), in the
    order of the bytes."""

    format: int
    epoch: int
    queues: list[tuple[str, list[tuple[int, int, int, int, int, int]]]]


class Group(NamedTuple):
    """Group object. `pieces`: in the order of their bytes. `packed_index`: the index that follows
    the pieces."""

    name: GroupName
    pieces: tuple[GroupPiece, ...]
    packed_index: bytes

    @property
    def is_readable(self) -> bool:
        """Whether the index could be read. Without the index no piece can be read."""
        return bool(self.packed_index)

    @property
    def size_bytes(self) -> int:
        """Size of the object in bytes."""
        return sum(piece.length for piece in self.pieces) + len(self.packed_index)

    def make_extents(self, modified_ms: int) -> Iterator[tuple[SegmentId, Extent]]:
        """Yield the extents of the group's pieces for segment manifests."""
        is_write = self.name.level == WRITES_LEVEL
        group, position = str(self.name), 0
        for piece in self.pieces:
            name = make_grouped_name(piece.generation, group, is_write=is_write)
            extent = Extent(piece.start, piece.end, name, modified_ms, position, piece.crc)
            yield piece.id, extent
            position += piece.length


def sort_key(id: SegmentId) -> tuple[int, str, int, int]:
    """Return the sort key of a segment's pieces in a group."""
    return order_in_groups(id.path), id.path, int(id.type), id.base_offset


def make_group(level: int, generation: Generation, pieces: Sequence[GroupPiece]) -> Group:
    """Create a group with its name and index. `pieces`: sorted by `sort_key`, all of this epoch.
    `generation`: an unused sequence number."""
    index = _encode_index(generation.epoch, pieces)
    first, last = order_in_groups(pieces[0].id.path), order_in_groups(pieces[-1].id.path)
    return Group(GroupName(level, generation, first, last, len(index)), tuple(pieces), index)


def read_group(name: GroupName, size_bytes: int, index: bytes) -> Group:
    """Read the index of a group object. Raises Corrupt if the index is damaged or does not match
    the object, and Invalid for another format version."""
    pieces = tuple(_decode_index(name, index))
    group = Group(name, pieces, index)
    if group.size_bytes != size_bytes or len(index) != name.index_bytes:
        raise Corrupt(
            f"group {name}: expected {group.size_bytes} bytes, {name.index_bytes} of them of its "
            f"index, found {size_bytes} and {len(index)}",
            path=str(name),
        )
    return group


def _encode_index(epoch: int, pieces: Iterable[GroupPiece]) -> bytes:
    queues = [
        (path, [_encode_piece(piece) for piece in found])
        for path, found in groupby(pieces, lambda piece: piece.id.path)
    ]
    return zlib.compress(msgspec.json.encode(_Index(GROUPS_FORMAT_VERSION, epoch, queues)), 6)


def _encode_piece(piece: GroupPiece) -> tuple[int, int, int, int, int, int]:
    segment, generation = piece.id, piece.generation
    place = int(segment.type), segment.base_offset
    return *place, generation.sequence, piece.start, piece.end, piece.crc


def _decode_index(name: GroupName, packed: bytes) -> Iterator[GroupPiece]:
    content, is_whole = decompress(packed, f"group {name}", "an index")
    try:
        found = msgspec.json.decode(content, type=_Index) if is_whole else None
    except msgspec.DecodeError as error:
        raise Corrupt(f"group {name}: not an index: {error}", path=str(name)) from error
    if found is None:
        raise Corrupt(f"group {name}: the index ends early", path=str(name))
    if found.format != GROUPS_FORMAT_VERSION:
        raise Invalid(
            f"group {name}: the tier has format version {found.format}, this program reads "
            f"{GROUPS_FORMAT_VERSION}",
            path=str(name),
        )
    for path, pieces in found.queues:
        for kind, base_offset, sequence, start, end, crc in pieces:
            is_place = 0 <= start < end < _MAX_END and 0 <= crc < _MAX_CRC
            if found.epoch != name.generation.epoch or not is_place or kind not in {0, 1}:
                raise Corrupt(f"group {name}: names what it cannot hold", path=str(name))
            id = SegmentId(path, FileSegmentType(kind), base_offset)  # noqa: A001
            yield GroupPiece(id, Generation(found.epoch, sequence), start, end, crc)
