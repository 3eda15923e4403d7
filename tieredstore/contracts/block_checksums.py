"""Checksums of blocks: what a provider keeps of segments whose format has none.

A segment with checksums checks what it reads by itself, where it can, and raises `BlocksDamaged`.
Nobody gets bytes that differ from what was written, unless he asks the error for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import FileSegment, SegmentId, SegmentListing
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE, UNKNOWN_TAGS_CODE

Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """Bytes [start, end) of a segment do not have their checksum."""

    start: int
    end: int
    expected_crc: int
    found_crc: int

    def __str__(self) -> str:
        return (
            f"block at {self.start} ({self.end - self.start} bytes): expected CRC-32 "
            f"{self.expected_crc:#010x}, found {self.found_crc:#010x}"
        )


class BlocksDamaged(Corrupt):
    """A read touches blocks that do not have their checksums.

    id: the segment. blocks: by ascending position, one at least. found: the bytes that were asked
    for, as they are now. Some of them are wrong: they are for who can tell which by himself, or
    looks for structure only, and are never served.
    """

    def __init__(
        self,
        id: SegmentId,
        path: str,
        blocks: tuple[DamagedBlock, ...],
        position: int,
        found: memoryview,
    ) -> None:
        more = "" if len(blocks) == 1 else f", and {len(blocks) - 1} more blocks"
        super().__init__(f"segment {id}: {path}: {blocks[0]}{more}", path=path, offset=position)
        self.id = id
        self.blocks = blocks
        self.found = found

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """[start, end) of the damaged blocks, as offsets in the file that the segment belongs
        to."""
        base = self.id.base_offset
        return [(base + block.start, base + block.end) for block in self.blocks]


def read_as_found(
    segment: FileSegment, position: int, length: int, damaged: list[BlocksDamaged] | None = None
) -> memoryview:
    """Read bytes of a segment, those in damaged blocks as they are: `damaged` is told. Raises as
    `FileSegment.read` otherwise."""
    try:
        return segment.read(position, length)
    except BlocksDamaged as error:
        if damaged is not None:
            damaged.append(error)
        return error.found


def distrust_tags(
    units: npt.NDArray[np.void], first: int, damaged: Sequence[BlocksDamaged]
) -> npt.NDArray[np.void]:
    """Return units from queue offset `first` on with UNKNOWN_TAGS_CODE in those that are in damaged
    blocks."""
    starts = (np.arange(len(units), dtype=np.int64) + first) * UNIT_SIZE
    units = units.copy()
    units["tags_code"][find_overlaps(damaged, starts, starts + UNIT_SIZE)] = UNKNOWN_TAGS_CODE
    return units


def find_overlaps(
    damaged: Sequence[BlocksDamaged], starts: Int64s, ends: Int64s
) -> npt.NDArray[np.bool_]:
    """Find which of the byte ranges [start, end) of a file touch a damaged block."""
    touched = np.zeros(len(starts), np.bool_)
    for error in damaged:
        for start, end in error.ranges:
            touched |= (starts < end) & (ends > start)
    return touched


@dataclass(frozen=True, slots=True)
class BlockCoverage:
    """How much of a segment has checksums.

    damaged: blocks that do not have theirs. is_set_aside: there are checksums, of other bytes than
    these: of a segment that had the name before.
    """

    size_bytes: int
    covered_bytes: int
    damaged: tuple[DamagedBlock, ...] = ()
    is_set_aside: bool = False


@runtime_checkable
class BlockChecked(Protocol):
    """A provider that keeps checksums of blocks of its segments. Optional."""

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        """Read a segment and check all that has checksums. listing: what a listing showed of it.
        Raises Unavailable, and Corrupt for one that is not there."""
        ...


@runtime_checkable
class BlockCovering(BlockChecked, Protocol):
    """A provider that keeps checksums of blocks beside its segments, where those that others wrote
    have none. Optional."""

    def cover_blocks(self, id: SegmentId) -> BlockCoverage:
        """Give checksums to what has none, of the bytes as they are. Only who holds the writer
        epoch may. What is damaged stays so. Raises as `check_blocks`."""
        ...

    def sweep_checksums(self, broker_name: str) -> int:
        """Delete checksums below a broker prefix whose segments are gone; Java deletes only these.
        Only who holds the writer epoch may. Returns their number. Raises Unavailable."""
        ...
