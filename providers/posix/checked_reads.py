"""Reads of a segment whose blocks are checked: whole blocks are read, and what was asked for given.

The first small read of a block checks all of it and learns the checksums of its pieces; later ones
read no more than the pieces that they touch. A block that does not have its checksum is looked at
again, with the checksums as they are by then: the segment may have been cut, or deleted and made
again, since they were read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tieredstore.contracts.block_checksums import BlockCoverage, BlocksDamaged, DamagedBlock
from tieredstore.contracts.segment import SegmentId
from tieredstore.disk.open_files import OpenFiles
from tieredstore.errors import Corrupt
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.posix.block_sums import (
    BLOCK_BYTES,
    PIECE_BYTES,
    BlockSums,
    compute_piece_crcs,
)
from tieredstore.providers.posix.sum_files import SegmentSums, find_bad_blocks

Read: TypeAlias = Callable[[int, int], memoryview]
"""Reads so many bytes from a position on. Raises OSError, Corrupt where the segment ends before."""
ReadNowait: TypeAlias = Callable[[int, int], memoryview | None]


class CheckedReads:
    """Reads of one segment. read: without checks."""

    __slots__ = ("_files", "_id", "_path", "_read", "_sums")

    def __init__(
        self, id: SegmentId, path: str, sums: SegmentSums, files: OpenFiles, read: Read
    ) -> None:
        self._id = id
        self._path = path
        self._sums = sums
        self._files = files
        self._read = read

    def read(self, position: int, length: int) -> memoryview:
        """Read exactly `length` bytes. Raises BlocksDamaged, Corrupt where the segment ends before,
        OSError."""
        sums = self._sums.find(position + length)
        try:
            found = self._read_piece(sums, position, length, self._read)
        except Corrupt:
            found = None
        if found is not None:
            return found
        data, bad = self._try(sums, position, length)
        if not bad:
            return data
        sums = self._sums.load()
        data, bad = self._try(sums, position, length)
        if not bad:
            return data
        with self._files.take(self._path) as fd:
            if self._sums.is_foreign(sums, fd):
                self._sums.set_aside(sums)
                return data
        raise BlocksDamaged(self._id, self._path, tuple(bad), position, data)

    def read_nowait(self, position: int, length: int, read_cached: ReadNowait) -> memoryview | None:
        """Return the same bytes when they and their checksums are at hand, and right. Raises
        OSError."""
        sums = self._sums.find_nowait()
        if sums is None:
            return None
        found = self._read_piece(sums, position, length, read_cached)
        if found is not None:
            return found
        end = position + length
        low, high = sums.widen(position, end)
        if low == high:
            return read_cached(position, length)
        data = read_cached(low, high - low)
        if data is None or find_bad_blocks(sums, position, end, data, low):
            return None
        return _slice(data, position - low, length)

    def check_all(self, fd: int, size: int) -> BlockCoverage:
        """Check the whole segment. Raises OSError."""
        sums, bad = self._sums.check(fd, size)
        if bad and self._sums.is_foreign(sums, fd):
            return BlockCoverage(size, 0, is_set_aside=True)
        return _coverage(sums, size, bad)

    def cover_all(self, fd: int, size: int) -> BlockCoverage:
        """Give checksums to what has none. Raises OSError."""
        sums, bad = self._sums.cover(fd, size)
        return _coverage(sums, size, bad)

    def _try(
        self, sums: BlockSums, position: int, length: int
    ) -> tuple[memoryview, list[DamagedBlock]]:
        end = position + length
        low, high = sums.widen(position, end)
        if low == high:
            return self._read(position, length), []
        try:
            data = self._read(low, high - low)
        except Corrupt:
            self._read(position, length)  # says so when what was asked for is not there
            if high == end:
                raise
            data = self._read(low, end - low)  # the checksums are ahead of the segment
        bad = find_bad_blocks(sums, position, end, data, low)
        return _slice(data, position - low, length), bad

    def _read_piece(
        self, sums: BlockSums, position: int, length: int, read: ReadNowait
    ) -> memoryview | None:
        """What lies within one good block, the usual case of few bytes; None for all others."""
        index, start = divmod(position, BLOCK_BYTES)
        end = start + length
        known = sums.lengths[index] if index < len(sums.lengths) else 0
        if known < end:
            return None
        block, crc = position - start, sums.crcs[index]
        crcs = sums.piece_crcs.get(index)
        if crcs is not None and crcs[-1] == crc:
            first, behind = start // PIECE_BYTES, -(-end // PIECE_BYTES)
            low = first * PIECE_BYTES
            data = read(block + low, min(behind * PIECE_BYTES, known) - low)
            if data is None:
                return None
            if behind < len(crcs) and raw_crc32(data, crcs[first]) == crcs[behind]:
                return _slice(data, start - low, length)
        data = read(block, known)
        if data is None:
            return None
        crcs = compute_piece_crcs(data)
        if crcs[-1] != crc:
            return None
        self._sums.learn(index, crcs)
        return _slice(data, start, length)


def _slice(data: memoryview, start: int, length: int) -> memoryview:
    """Some of the bytes; few of them do not hold the memory of all."""
    if start == 0 and data.nbytes == length:
        return data
    found = data[start : start + length]
    return memoryview(bytes(found)) if 2 * length < data.nbytes else found


def _coverage(sums: BlockSums, size: int, bad: list[DamagedBlock]) -> BlockCoverage:
    return BlockCoverage(size, min(sums.covered_bytes, size), tuple(bad))
