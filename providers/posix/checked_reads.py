"""Verified reads of a segment. The first small read of a block verifies the whole block and
computes the checksums of its pieces. Later reads verify only the pieces that they touch. If a block
does not match, its checksums are read again, because the segment may have been truncated or
recreated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tieredstore.contracts.block_checksums import BlockCoverage, BlocksDamaged, DamagedBlock
from tieredstore.contracts.segment import SegmentId
from tieredstore.disk.open_files import OpenFiles
from tieredstore.errors import Corrupt
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.posix.block_sums import BLOCK_BYTES, BlockSums, compute_piece_crcs
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.sum_files import SegmentSums, find_bad_blocks

Read: TypeAlias = Callable[[int, int], memoryview]
"""Function of (position, length) that reads bytes. Raises OSError, and Corrupt if the segment is
too short."""
_NOTHING = memoryview(b"")


class CheckedReads:
    """Reads of one segment that verify checksums. `read`: reads without verification."""

    __slots__ = ("_calls", "_files", "_id", "_path", "_read", "_sums")

    def __init__(
        self,
        id: SegmentId,
        path: str,
        sums: SegmentSums,
        files: OpenFiles,
        calls: PosixCalls,
        read: Read,
    ) -> None:
        self._id = id
        self._path = path
        self._sums = sums
        self._files = files
        self._calls = calls
        self._read = read

    def read(self, position: int, length: int) -> memoryview:
        """Read exactly `length` bytes. Raises BlocksDamaged, Corrupt if the segment is too short,
        OSError."""
        sums = self._sums.find(position + length)
        piece = sums.find_piece(position, length)
        if piece is not None:
            start, size, crc_in_front, crc = piece
            try:
                data = self._read(start, size)
            except Corrupt:  # the segment ends before: the requested bytes may exist
                data = _NOTHING
            if len(data) == size and raw_crc32(data, crc_in_front) == crc:
                return _slice(data, position - start, length)
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

    def read_nowait(self, fd: int, position: int, length: int) -> memoryview | None:
        """Return the bytes if they and their checksums are in memory and match, else None. `fd`:
        file descriptor of the segment. Raises OSError."""
        sums = self._sums.find_nowait()
        if sums is None:
            return None
        piece = sums.find_piece(position, length)
        if piece is not None:
            start, size, crc_in_front, crc = piece
            data = memoryview(bytearray(size))
            if self._calls.read_cached(fd, data, start) != size:
                return None
            if raw_crc32(data, crc_in_front) == crc:
                return _slice(data, position - start, length)
        end = position + length
        low, high = sums.widen(position, end)
        if low == high:
            low, high = position, end
        # For few bytes, zeros are faster than an array.
        size = high - low
        data = memoryview(bytearray(size)) if size <= BLOCK_BYTES else np.empty(size, np.uint8).data
        # the rest may not be in the cache, or the file may end there
        if self._calls.read_cached(fd, data, low) != size:
            return None
        if self._find_bad(sums, position, end, data, low):
            return None
        return _slice(data, position - low, length)

    def check_all(self, fd: int, size: int) -> BlockCoverage:
        """Verify all blocks of the segment. Raises OSError."""
        sums, bad = self._sums.check(fd, size)
        if bad and self._sums.is_foreign(sums, fd):
            return BlockCoverage(size, 0, is_set_aside=True)
        return _coverage(sums, size, bad)

    def cover_all(self, fd: int, size: int) -> BlockCoverage:
        """Compute checksums for the blocks that have none."""
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
            self._read(position, length)  # raises if the requested bytes do not exist
            if high == end:
                raise
            data = self._read(low, end - low)  # the checksums are ahead of the segment
        bad = self._find_bad(sums, position, end, data, low)
        return _slice(data, position - low, length), bad

    def _find_bad(
        self, sums: BlockSums, position: int, end: int, data: memoryview, low: int
    ) -> list[DamagedBlock]:
        """Return the result of `find_bad_blocks`. If only one block was read and it is good,
        compute the checksums of its pieces."""
        index, start = divmod(low, BLOCK_BYTES)
        block = sums.entry(index)
        if not start and 0 < data.nbytes == block.length:
            crcs = compute_piece_crcs(data)
            if crcs[-1] == block.crc:
                self._sums.learn(index, crcs)
                return []
        return find_bad_blocks(sums, position, end, data, low)


def _slice(data: memoryview, start: int, length: int) -> memoryview:
    """Return a read-only slice of the bytes. A short slice is copied to free the whole buffer."""
    if start == 0 and data.nbytes == length:
        return data.toreadonly()
    found = data[start : start + length]
    return memoryview(bytes(found)) if 2 * length < data.nbytes else found.toreadonly()


def _coverage(sums: BlockSums, size: int, bad: list[DamagedBlock]) -> BlockCoverage:
    return BlockCoverage(size, min(sums.covered_bytes, size), tuple(bad))
