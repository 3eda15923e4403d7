"""CRC-32 as RocketMQ uses it (`docs/formats/record.md`)."""

from __future__ import annotations

from tieredstore.message.buffers import Buffer

try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # a platform without zlib-ng: same values, about seven times slower
    from zlib import crc32 as _crc32

__all__ = ["CRC_MASK", "crc32", "raw_crc32"]

CRC_MASK = 0x7FFFFFFF
"""RocketMQ drops the top bit, so that the value is never negative in Java."""

raw_crc32 = _crc32
"""The unmasked CRC-32 (`raw_crc32(buffer, value)`), for callers that mask at the end."""


def crc32(buffer: Buffer, value: int = 0) -> int:
    """The CRC-32 (IEEE) of a buffer without its top bit; 0 for an empty one.

    `value` is an *unmasked* CRC to go on from (see `raw_crc32`).
    """
    return _crc32(buffer, value) & CRC_MASK
