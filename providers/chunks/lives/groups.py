"""Group objects: bytes of many queues in one object, sorted by queue, with an index behind them.

    <cluster folder>/<broker>/.groups/<level>.<epoch>.<sequence>.<first>-<last>.<index bytes>

To the segments whose bytes it holds, a piece of a group of level 0 is one write, and a piece of one
of level 1 a merged run: each rule about lives holds for them word for word (`docs/formats/
chunk-log.md`). `<first>-<last>` are the places of its first and last queue in the order of groups,
so that who looks for one queue leaves most groups alone. An epoch gives no sequence number twice.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from tieredstore.contracts.gathering import order_in_groups
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.inheritance import GROUPS_FORMAT_VERSION, decompress
from tieredstore.providers.chunks.lives.names import Life, make_grouped_name

WRITES_LEVEL = 0
RUNS_LEVEL = 1
_MAX_END, _MAX_CRC = 2**63, 2**32
_NAME = re.compile(
    r"([01])\.([0-9]{10})\.([0-9]{10})\.([0-9a-f]{8})-([0-9a-f]{8})\.([1-9][0-9]{0,9})", re.ASCII
)


class GroupName(NamedTuple):
    """first, last: of the order of its queues; index_bytes: so long is the index, at the end."""

    level: int
    life: Life
    first: int
    last: int
    index_bytes: int

    def __str__(self) -> str:
        epoch, sequence = self.life
        queues = f"{self.first:08x}-{self.last:08x}"
        return f"{self.level}.{epoch:010d}.{sequence:010d}.{queues}.{self.index_bytes}"

    def may_have(self, path: str) -> bool:
        """Tell whether it may have bytes of a queue."""
        return self.first <= order_in_groups(path) <= self.last


def parse_group_name(name: str) -> GroupName | None:
    """Parse a name in the folder of the groups; None for what is not a group's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    life = Life(int(match[2]), int(match[3]))
    return GroupName(int(match[1]), life, int(match[4], 16), int(match[5], 16), int(match[6]))


class GroupPiece(NamedTuple):
    """Bytes [start, end) of a segment, written in `life` there; crc: their CRC-32."""

    id: SegmentId
    life: Life
    start: int
    end: int
    crc: int

    @property
    def length(self) -> int:
        return self.end - self.start


class _Index(msgspec.Struct, frozen=True):
    """queues: (path, [(type, base offset, sequence, start, end, crc)]), in the order of the
    bytes."""

    format: int
    epoch: int
    queues: list[tuple[str, list[tuple[int, int, int, int, int, int]]]]


class Group(NamedTuple):
    """pieces: in the order of their bytes in the object; content: the index, which is behind
    them."""

    name: GroupName
    pieces: tuple[GroupPiece, ...]
    packed_index: bytes

    @property
    def is_readable(self) -> bool:
        """Whether its index is known; else nothing of what it holds is."""
        return bool(self.packed_index)

    @property
    def size_bytes(self) -> int:
        """Of the object."""
        return sum(piece.length for piece in self.pieces) + len(self.packed_index)

    def make_extents(self, modified_ms: int) -> Iterator[tuple[SegmentId, Extent]]:
        """Yield what its pieces are in the chains of their segments."""
        is_write = self.name.level == WRITES_LEVEL
        group, position = str(self.name), 0
        for piece in self.pieces:
            name = make_grouped_name(piece.life, group, is_write=is_write)
            extent = Extent(piece.start, piece.end, name, modified_ms, position, piece.crc)
            yield piece.id, extent
            position += piece.length


def sort_key(id: SegmentId) -> tuple[int, str, int, int]:
    """Return what pieces of a group are sorted by."""
    return order_in_groups(id.path), id.path, int(id.type), id.base_offset


def make_group(level: int, life: Life, pieces: Sequence[GroupPiece]) -> Group:
    """Make the name and the index of a group with these pieces, in the order of `sort_key`, all of
    lives of its own epoch. life: a sequence number that serves nothing else."""
    index = _encode_index(life.epoch, pieces)
    first, last = order_in_groups(pieces[0].id.path), order_in_groups(pieces[-1].id.path)
    return Group(GroupName(level, life, first, last, len(index)), tuple(pieces), index)


def read_group(name: GroupName, size_bytes: int, index: bytes) -> Group:
    """Read the index of a group object. Raises Corrupt when it is none, or does not go with its
    object, Invalid for another format version."""
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
    segment, life = piece.id, piece.life
    place = int(segment.type), segment.base_offset
    return *place, life.sequence, piece.start, piece.end, piece.crc


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
            if found.epoch != name.life.epoch or not is_place or kind not in {0, 1}:
                raise Corrupt(f"group {name}: names what it cannot hold", path=str(name))
            id = SegmentId(path, FileSegmentType(kind), base_offset)  # noqa: A001
            yield GroupPiece(id, Life(found.epoch, sequence), start, end, crc)
