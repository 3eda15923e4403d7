"""Block checksums, which a provider keeps for segments whose format has no checksums. Reading a
segment verifies the blocks it touches and raises `BlocksDamaged` on a mismatch. The exception
carries the damaged bytes for callers that can use them."""

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
    """Bytes [start, end) of a segment that do not match their checksum."""

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
    """Raised by a read of blocks with a wrong checksum. `id`: the segment. `blocks`: the damaged
    blocks in ascending order, at least one. `found`: the requested bytes as stored, some of them
    wrong. Never return these bytes to clients. Use them only to find record boundaries, or if
    another check shows which bytes are good."""

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
        """Ranges [start, end) of the damaged blocks, in bytes from the start of the segment's
        file."""
        base = self.id.base_offset
        return [(base + block.start, base + block.end) for block in self.blocks]


def read_as_found(
    segment: FileSegment, position: int, length: int, damaged: list[BlocksDamaged] | None = None
) -> memoryview:
    """Read bytes of a segment, even from damaged blocks. Errors from damaged blocks are appended to
    `damaged`. Raises the other errors of `FileSegment.read`."""
    try:
        return segment.read(position, length)
    except BlocksDamaged as error:
        if damaged is not None:
            damaged.append(error)
        return error.found


def distrust_tags(
    units: npt.NDArray[np.void], first: int, damaged: Sequence[BlocksDamaged]
) -> npt.NDArray[np.void]:
    """Return the units with UNKNOWN_TAGS_CODE as the tags code of each unit in a damaged block.
    `first`: queue offset of the first unit."""
    starts = (np.arange(len(units), dtype=np.int64) + first) * UNIT_SIZE
    units = units.copy()
    units["tags_code"][find_overlaps(damaged, starts, starts + UNIT_SIZE)] = UNKNOWN_TAGS_CODE
    return units


def find_overlaps(
    damaged: Sequence[BlocksDamaged], starts: Int64s, ends: Int64s
) -> npt.NDArray[np.bool_]:
    """Return, for each byte range [start, end) of a file, whether it touches a damaged block."""
    touched = np.zeros(len(starts), np.bool_)
    for error in damaged:
        for start, end in error.ranges:
            touched |= (starts < end) & (ends > start)
    return touched


@dataclass(frozen=True, slots=True)
class BlockCoverage:
    """Checksum coverage of a segment. `covered_bytes`: total size of the blocks with a checksum.
    `damaged`: blocks with a wrong checksum. `is_set_aside`: True if the checksums belong to an
    earlier segment of the same name and are ignored."""

    size_bytes: int
    covered_bytes: int
    damaged: tuple[DamagedBlock, ...] = ()
    is_set_aside: bool = False


@runtime_checkable
class BlockChecked(Protocol):
    """Provider that keeps block checksums of its segments. Optional."""

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        """Read a segment and verify every block that has a checksum. `listing`: the segment's entry
        in a listing. Raises Corrupt if the segment does not exist, or Unavailable."""


@runtime_checkable
class BlockCovering(BlockChecked, Protocol):
    """Provider that can add checksums to segments written without them. Optional."""

    def cover_blocks(self, id: SegmentId) -> BlockCoverage:
        """Compute the missing block checksums from the current bytes. A block that is already
        damaged stays damaged. Requires the writer epoch. Raises the errors of `check_blocks`."""

    def sweep_checksums(self, broker_name: str) -> int:
        """Delete the checksums of deleted segments of a broker, and return how many were deleted.
        Java brokers delete segments but leave their checksums. Requires the writer epoch. Raises
        Unavailable."""
