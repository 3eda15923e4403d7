"""Bits of a record's sysFlag (`docs/formats/record.md`)."""

from __future__ import annotations

import enum

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_TYPE_SHIFT = 8


class CompressionType(enum.IntEnum):
    """Compression of a body. Producers before RocketMQ 5 left the field at 0 for zlib."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_type(sys_flag: int) -> CompressionType | None:
    """Return the compression of a *compressed* body, or None for a value that RocketMQ does not
    write."""
    value = (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT
    if value == 0:
        return CompressionType.ZLIB
    try:
        return CompressionType(value)
    except ValueError:
        return None


def set_compression(sys_flag: int, compression: CompressionType) -> int:
    """Return the flag with the bits of this compression."""
    flag = sys_flag & ~COMPRESSION_TYPE_MASK
    return flag | COMPRESSED | (compression << COMPRESSION_TYPE_SHIFT)


def transaction_type(sys_flag: int) -> int:
    return sys_flag & TRANSACTION_MASK
