"""CRC-32 as RocketMQ uses it: of bodies, and of whole records (`docs/formats/record.md`).

A record may end in the `__CRC32#` property, the CRC of all of it in front. That covers the physical
offset, so rewriting the offset (as an upload does) makes it wrong: `property_crc_matches` takes the
original one, `renew_property_crc` writes the digits again. Both take a record whose size was
checked (`decode_record`, `check_record`).
"""

from __future__ import annotations

import struct

from tieredstore.message.buffers import Buffer
from tieredstore.message.layout import (
    PHYSICAL_OFFSET_POSITION,
    SYS_FLAG_POSITION,
    make_corrupt_error,
)

try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # a platform without zlib-ng: same values, about seven times slower
    from zlib import crc32 as _crc32

__all__ = [
    "CRC_BLOCK_SIZE",
    "CRC_MASK",
    "RELEASING_BYTES",
    "crc32",
    "crc_block",
    "large_crc32",
    "property_crc",
    "property_crc_matches",
    "raw_crc32",
    "renew_property_crc",
    "stored_property_crc",
]

CRC_MASK = 0x7FFFFFFF
"""RocketMQ drops the top bit, so that the value is never negative in Java."""

CRC_BLOCK_SIZE = 20
"""`__CRC32#`, 0x01, ten digits, 0x02."""

_NAME = b"__CRC32#\x01"
_OFFSET = struct.Struct(">q")

raw_crc32 = _crc32
"""The unmasked CRC-32 (`raw_crc32(buffer, value)`), for callers that mask at the end."""

RELEASING_BYTES = 5 << 10
"""From more bytes than that on, both libraries release the GIL for a call."""
_LARGE_BYTES = 64 << 10


def large_crc32(data: Buffer) -> int:
    """Compute the unmasked CRC-32 of more than `RELEASING_BYTES` with the GIL held, so that a put
    of some KiB costs no change of threads; released for what takes longer than such a change."""
    view = memoryview(data)
    if view.nbytes > _LARGE_BYTES:
        return _crc32(view)
    value = 0
    for start in range(0, view.nbytes, RELEASING_BYTES):
        value = _crc32(view[start : start + RELEASING_BYTES], value)
    return value


def crc32(buffer: Buffer, value: int = 0) -> int:
    """Compute the CRC-32 (IEEE) of a buffer without its top bit; 0 for an empty one.

    `value` is an *unmasked* CRC to go on from (see `raw_crc32`).
    """
    return _crc32(buffer, value) & CRC_MASK


def crc_block(crc: int) -> bytes:
    """Make the 20 bytes for a masked CRC: its decimal digits, the least significant one first."""
    return _NAME + (b"%010d" % crc)[::-1] + b"\x02"


def stored_property_crc(buffer: Buffer, position: int, size: int) -> int | None:
    """Read the CRC that a record carries; None when it does not end in a CRC block."""
    block = bytes(memoryview(buffer)[position + size - CRC_BLOCK_SIZE : position + size])
    digits = block[len(_NAME) : -1]
    if not block.startswith(_NAME) or block[-1] != 2 or not digits.isdigit():
        return None
    return int(digits[::-1])


def property_crc(
    buffer: Buffer, position: int, size: int, *, physical_offset: int | None = None
) -> int:
    """Compute the CRC of a record without its last 20 bytes, masked.

    physical_offset: what to take in place of the offset that stands in the record.
    """
    record = memoryview(buffer)[position : position + size - CRC_BLOCK_SIZE]
    if physical_offset is None:
        return raw_crc32(record) & CRC_MASK
    crc = raw_crc32(record[:PHYSICAL_OFFSET_POSITION])
    crc = raw_crc32(_OFFSET.pack(physical_offset), crc)
    return raw_crc32(record[SYS_FLAG_POSITION:], crc) & CRC_MASK


def property_crc_matches(
    buffer: Buffer, position: int, size: int, *, physical_offset: int | None = None
) -> bool | None:
    """Tell whether the stored CRC is right; None when the record carries none.

    physical_offset: the offset of the record in the log that it was first written to, for a record
    that was uploaded since.
    """
    stored = stored_property_crc(buffer, position, size)
    if stored is None:
        return None
    return stored == property_crc(buffer, position, size, physical_offset=physical_offset)


def renew_property_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Write the right digits into a record that was changed in place. Raises Corrupt when the
    record carries no CRC block."""
    if stored_property_crc(buffer, position, size) is None:
        raise make_corrupt_error(position, "CRC property", "the last 20 bytes", "none")
    end = position + size
    buffer[end - CRC_BLOCK_SIZE : end] = crc_block(property_crc(buffer, position, size))
