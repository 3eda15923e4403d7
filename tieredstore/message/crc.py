"""CRC-32 as RocketMQ uses it, for bodies and whole records (`docs/formats/record.md`).

A record may end in the `__CRC32#` property, the CRC of the rest of the record. It covers the
physical offset, so an upload, which rewrites the offset, invalidates it. `property_crc_matches`
therefore takes the original offset. It expects a record whose size was checked (`decode_record`).
"""

from __future__ import annotations

import struct

from tieredstore.message.buffers import Buffer
from tieredstore.message.layout import PHYSICAL_OFFSET_POSITION, SYS_FLAG_POSITION

try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # a platform without zlib-ng gets the same values, about seven times as slowly
    from zlib import crc32 as _crc32


CRC_MASK = 0x7FFFFFFF
"""Mask of a CRC. RocketMQ clears the top bit, so that the value is never negative in Java."""

CRC_BLOCK_SIZE = 20
"""Length of a CRC block: `__CRC32#`, 0x01, ten digits, 0x02."""

_NAME = b"__CRC32#\x01"
_OFFSET = struct.Struct(">q")

raw_crc32 = _crc32
"""CRC-32 with its top bit: `raw_crc32(buffer, value)`. Callers apply CRC_MASK to the final
value."""

RELEASING_BYTES = 5 << 10
"""Number of bytes above which zlib-ng and zlib release the GIL."""
_LARGE_BYTES = 64 << 10


def large_crc32(data: Buffer) -> int:
    """Return the unmasked CRC-32 of more than `RELEASING_BYTES`. Holds the GIL for some KiB, so
    that a put does not switch threads, and releases it for longer calls."""
    view = memoryview(data)
    if view.nbytes > _LARGE_BYTES:
        return _crc32(view)
    value = 0
    for start in range(0, view.nbytes, RELEASING_BYTES):
        value = _crc32(view[start : start + RELEASING_BYTES], value)
    return value


def crc32(buffer: Buffer, value: int = 0) -> int:
    """Return the CRC-32 (IEEE) of a buffer without its top bit, or 0 for an empty buffer. `value`:
    *unmasked* CRC to continue from (see `raw_crc32`)."""
    return _crc32(buffer, value) & CRC_MASK


def crc_block(crc: int) -> bytes:
    """Return the 20 bytes of a CRC block: a masked CRC as decimal digits, least significant digit
    first."""
    return _NAME + (b"%010d" % crc)[::-1] + b"\x02"


def stored_property_crc(buffer: Buffer, position: int, size: int) -> int | None:
    """Return the CRC stored in a record, or None if it does not end in a CRC block."""
    block = bytes(memoryview(buffer)[position + size - CRC_BLOCK_SIZE : position + size])
    digits = block[len(_NAME) : -1]
    if not block.startswith(_NAME) or block[-1] != 2 or not digits.isdigit():
        return None
    return int(digits[::-1])


def property_crc(
    buffer: Buffer, position: int, size: int, *, physical_offset: int | None = None
) -> int:
    """Return the masked CRC of all bytes of a record except the last 20. `physical_offset`:
    physical offset to use instead of the record's own."""
    record = memoryview(buffer)[position : position + size - CRC_BLOCK_SIZE]
    if physical_offset is None:
        return raw_crc32(record) & CRC_MASK
    crc = raw_crc32(record[:PHYSICAL_OFFSET_POSITION])
    crc = raw_crc32(_OFFSET.pack(physical_offset), crc)
    return raw_crc32(record[SYS_FLAG_POSITION:], crc) & CRC_MASK


def property_crc_matches(
    buffer: Buffer, position: int, size: int, *, physical_offset: int | None = None
) -> bool | None:
    """Return whether the stored CRC of a record is correct, or None if it has none.
    `physical_offset`: offset of the record in its first log, if the record was uploaded."""
    stored = stored_property_crc(buffer, position, size)
    if stored is None:
        return None
    return stored == property_crc(buffer, position, size, physical_offset=physical_offset)
