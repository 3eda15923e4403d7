"""Checksums of a segment's blocks, as bytes (`docs/formats/block-checksums.md`). The file is
readable after any crash. An entry that is torn, damaged or missing covers no bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tieredstore.contracts.segment import Buffer
from tieredstore.message.crc import raw_crc32

BLOCK_BYTES: Final = 64 << 10
PIECE_BYTES: Final = 1 << 10
"""Size of the pieces of a block. A piece can be verified alone once its block was verified."""
HEAD_BYTES: Final = 80
"""Number of bytes at the beginning of a segment that its checksum file repeats, to identify the
segment."""
HEADER_BYTES: Final = 128
ENTRY_BYTES: Final = 16
FORMAT_VERSION: Final = 1
_PIECES_MEMORY_BYTES: Final = 448
_MAGIC: Final = b"TSBLKCRC"
_HEADER: Final = struct.Struct(">8sIIII8x80s16x")
_ENTRY: Final = struct.Struct(">IIII")
_STAMP: Final = struct.Struct(">qq")
_MASK: Final = 0xFFFFFFFF
_FEW_SLOTS: Final = 16
_STAMP_MASK: Final = 0x5A5A5A5A5A5A5A5A
"""Mask that computes the check value of the modification time at the end of the file. Entries use
another mask. A torn write can leave a modification time at the position of an entry, and it must
not be read as an entry."""


class BlockEntry(NamedTuple):
    """CRC-32 of the first `length` bytes of a block. `block`: number of the block in its segment. A
    `length` of 0 means that the CRC is unknown."""

    block: int
    length: int
    crc: int

    @property
    def start(self) -> int:
        """Position in the segment (bytes)."""
        return self.block * BLOCK_BYTES

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(slots=True)
class BlockSums:
    """Known checksums of a segment's blocks.

    `head`: first bytes of the segment. `modified_ns`: the segment's modification time when the last
    of these checksums was computed, or None if unknown. `piece_crcs`: result of
    `compute_piece_crcs` for each block that was verified, by block number.
    """

    head: bytes = b""
    modified_ns: int | None = None
    lengths: array[int] = field(default_factory=lambda: array("I"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    piece_crcs: dict[int, array[int]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """End of the covered bytes of the segment."""
        return (len(self.lengths) - 1) * BLOCK_BYTES + self.lengths[-1] if self.lengths else 0

    @property
    def covered_bytes(self) -> int:
        return sum(self.lengths)

    @property
    def memory_bytes(self) -> int:
        return HEADER_BYTES + 8 * len(self.lengths) + _PIECES_MEMORY_BYTES * len(self.piece_crcs)

    def entry(self, index: int) -> BlockEntry:
        """Return the entry of a block."""
        known = index < len(self.lengths)
        return BlockEntry(index, *((self.lengths[index], self.crcs[index]) if known else (0, 0)))

    def widen(self, start: int, end: int) -> tuple[int, int]:
        """Return the range [start, end) to read in order to verify the blocks that the given bytes
        touch. The range is empty if no block can be verified."""
        first, last = self.entry(start // BLOCK_BYTES), self.entry((end - 1) // BLOCK_BYTES)
        if not any(self.lengths[first.block : last.block + 1]):
            return start, start
        low = first.start if first.end > start else start
        return low, max(end, last.end) if last.length else end

    def find_piece(self, position: int, length: int) -> tuple[int, int, int, int] | None:
        """Return the pieces of one block that contain the given bytes: position, size in bytes, and
        the block's CRC-32 before and after them. Return None if the pieces are unknown."""
        index, start = divmod(position, BLOCK_BYTES)
        crcs = self.piece_crcs.get(index)
        if crcs is None or index >= len(self.lengths):
            return None
        end, known = start + length, self.lengths[index]
        first, behind, last = start // PIECE_BYTES, -(-end // PIECE_BYTES), len(crcs) - 1
        if end > known or behind > last or crcs[last] != self.crcs[index]:
            return None
        low = first * PIECE_BYTES
        high = behind * PIECE_BYTES if behind < last else known
        return position - start + low, high - low, crcs[first], crcs[behind]

    def put(self, entries: Sequence[BlockEntry]) -> None:
        """Add the entries of consecutive blocks. Blocks between the last known block and these
        become unknown."""
        for index, length, crc in entries:
            while len(self.lengths) <= index:
                self.crcs.append(0)
                self.lengths.append(0)
            self.lengths[index], self.crcs[index] = length, crc

    def cut(self, size_bytes: int) -> None:
        """Drop the entries of the block at position `size_bytes` and of all later blocks."""
        keep = size_bytes // BLOCK_BYTES
        del self.lengths[keep:]
        del self.crcs[keep:]

    def is_of(self, head: Buffer) -> bool:
        """Return whether the checksums belong to a segment that begins with the bytes `head`. These
        contain times that identify the segment. If they match, bytes that differ from their
        checksum are damaged."""
        pairs = zip(self.head, head, strict=False)
        differs = [at for at, (known, found) in enumerate(pairs) if known != found]
        return not differs or differs[-1] - differs[0] < 4


def encode_sums(sums: BlockSums) -> bytes:
    """Encode a whole file of checksums."""
    entries = zip(sums.lengths, sums.crcs, strict=True)
    return encode_header(sums.head) + _encode(entries, sums.modified_ns)


def encode_header(head: bytes) -> bytes:
    """Encode the first HEADER_BYTES of the file."""
    crc = raw_crc32(head, len(head))
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, BLOCK_BYTES, len(head), crc, head)


def encode_entries(entries: Iterable[BlockEntry], modified_ns: int | None) -> bytes:
    """Encode consecutive entries, and the stamp that ends the file."""
    return _encode(((length, crc) for _, length, crc in entries), modified_ns)


def _encode(entries: Iterable[tuple[int, int]], modified_ns: int | None) -> bytes:
    packed = [
        _ENTRY.pack(length, crc, length ^ _MASK, crc ^ _MASK) if length else bytes(ENTRY_BYTES)
        for length, crc in entries
    ]
    if modified_ns is None:
        packed.append(bytes(ENTRY_BYTES))
    else:
        packed.append(_STAMP.pack(modified_ns, modified_ns ^ _STAMP_MASK))
    return b"".join(packed)


def entry_position(index: int) -> int:
    """Return the position of a block's entry in the file."""
    return HEADER_BYTES + index * ENTRY_BYTES


def decode_sums(data: bytes) -> BlockSums | None:
    """Decode a file of checksums. Returns None for a header of another format."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, block_bytes, head_length, crc, head = _HEADER.unpack_from(data)
    head = head[:head_length]
    if (magic, version, block_bytes) != (_MAGIC, FORMAT_VERSION, BLOCK_BYTES):
        return None
    if head_length > HEAD_BYTES or raw_crc32(head, head_length) != crc:
        return None
    sums = BlockSums(head)
    slots = (len(data) - HEADER_BYTES) // ENTRY_BYTES
    if not slots:
        return sums
    if slots <= _FEW_SLOTS:
        _decode_few(data, slots - 1, sums)
    else:
        _decode_many(data, slots, sums)
    modified_ns, check = _STAMP.unpack_from(data, entry_position(slots - 1))
    if modified_ns ^ _STAMP_MASK == check:
        sums.modified_ns = modified_ns
    while sums.lengths and not sums.lengths[-1]:
        sums.lengths.pop()
        sums.crcs.pop()
    return sums


def compute_piece_crcs(block: memoryview) -> array[int]:
    """Return the CRC-32 of a block's bytes before each of its pieces, and of the whole block. A
    CRC-32 that continues from the value before a piece must reach the value after it, so that
    pieces can be verified alone."""
    crc = 0
    crcs = [crc]
    for start in range(0, block.nbytes, PIECE_BYTES):
        crc = raw_crc32(block[start : start + PIECE_BYTES], crc)
        crcs.append(crc)
    return array("I", crcs)


def _decode_few(data: bytes, count: int, sums: BlockSums) -> None:
    """Decode entries like `_decode_many`, but faster for few blocks."""
    for index in range(count):
        length, crc, length_check, crc_check = _ENTRY.unpack_from(data, entry_position(index))
        is_good = length ^ length_check == crc ^ crc_check == _MASK and 0 < length <= BLOCK_BYTES
        sums.lengths.append(length if is_good else 0)
        sums.crcs.append(crc if is_good else 0)


def _decode_many(data: bytes, slots: int, sums: BlockSums) -> None:
    words = np.frombuffer(data, ">u4", slots * 4, HEADER_BYTES).reshape(slots, 4)
    fields = words[:-1].astype(np.uint32)
    good = ((fields[:, 0] ^ fields[:, 2]) == _MASK) & ((fields[:, 1] ^ fields[:, 3]) == _MASK)
    good &= (fields[:, 0] > 0) & (fields[:, 0] <= BLOCK_BYTES)
    fields[~good] = 0
    sums.lengths.frombytes(np.ascontiguousarray(fields[:, 0]).tobytes())
    sums.crcs.frombytes(np.ascontiguousarray(fields[:, 1]).tobytes())


def compute_entries(
    position: int, buffers: Sequence[Buffer], tail_crc: int
) -> tuple[list[BlockEntry], int]:
    """Return the entries of the blocks that a write at `position` touches, and the CRC of a partial
    last block (else 0). `tail_crc`: CRC of the bytes before `position` in its block."""
    entries: list[BlockEntry] = []
    index, length = divmod(position, BLOCK_BYTES)
    crc = tail_crc
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        start = 0
        while start < view.nbytes:
            part = view[start : start + BLOCK_BYTES - length]
            crc = raw_crc32(part, crc)
            length += part.nbytes
            start += part.nbytes
            if length == BLOCK_BYTES:
                entries.append(BlockEntry(index, length, crc))
                index, length, crc = index + 1, 0, 0
    if length:
        entries.append(BlockEntry(index, length, crc))
    return entries, crc
