"""Checksums of blocks: what a provider keeps beside segments whose format has none.

A segment with checksums checks what it reads by itself, and raises `BlocksDamaged`. Nobody gets
bytes that differ from what was written, unless he asks the error for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt


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

    id: the segment. blocks: by ascending position, one at least. position: of the read. found: the
    bytes that were asked for, as they are now. Some of them are wrong: they are for those who can
    tell which, and for nobody else.
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
        self.position = position
        self.found = found

    @property
    def found_offset(self) -> int:
        """Of the first byte of `found`, in the file that the segment belongs to."""
        return self.id.base_offset + self.position

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """[start, end) of the damaged blocks, as offsets in the file that the segment belongs
        to."""
        base = self.id.base_offset
        return [(base + block.start, base + block.end) for block in self.blocks]


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
    """A provider that keeps checksums of blocks beside its segments. Optional."""

    def check_blocks(self, id: SegmentId) -> BlockCoverage:
        """Read a segment and check all that has checksums. Raises Unavailable, and Corrupt for one
        that is not there."""
        ...

    def cover_blocks(self, id: SegmentId) -> BlockCoverage:
        """Give checksums to what has none, of the bytes as they are. Only who holds the writer
        epoch may. What is damaged stays so. Raises as `check_blocks`."""
        ...

    def sweep_checksums(self, broker_name: str) -> int:
        """Delete checksums below a broker prefix whose segments are gone; Java deletes only these.
        Only who holds the writer epoch may. Returns their number. Raises Unavailable."""
        ...
