"""Records, batches and bodies in formats that only tests create or check."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import lz4.frame
import zstandard

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.batch import BatchItem
from tieredstore.message.buffers import Buffer
from tieredstore.message.columns.walk import Positions, Stop, walk_records
from tieredstore.message.crc import (
    CRC_BLOCK_SIZE,
    crc_block,
    property_crc,
    property_crc_matches,
    stored_property_crc,
)
from tieredstore.message.layout import (
    BLANK_SIZE,
    MAGIC_BLANK,
    check_size,
    locate,
    make_corrupt_error,
    size_and_magic,
)
from tieredstore.message.properties import MAX_PROPERTIES_BYTES
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import CompressionType

DEFAULT_LEVEL = 5
"""Java's default compression level."""
_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">h")
_MIN_SIZE: Final = _HEAD.size + _LENGTH.size


def record_positions(buffer: Buffer, start: int = 0, end: int | None = None) -> Positions:
    """Return the positions of the records from `start` to `end`.

    A blank record or unwritten zeros end the list. Raises Corrupt for anything else, such as a
    record that crosses the end.
    """
    walk = walk_records(buffer, start, end)
    if walk.stop in (Stop.BAD, Stop.CUT):
        check_size(buffer, walk.next_position, len(buffer) if end is None else end)
    return walk.positions


def compress(data: Buffer, compression: CompressionType, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress a body as a producer does. The caller must set the message's compression flag by
    `sysflag.set_compression`."""
    if compression is CompressionType.ZLIB:
        return zlib.compress(data, level)
    if compression is CompressionType.LZ4:
        return bytes(lz4.frame.compress(data))
    if compression is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(data)
    raise Invalid(f"compression: expected ZLIB, LZ4 or ZSTD, found {compression!r}")


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Encode the body of a batch. Raises Invalid if the properties are too long."""
    parts: list[Buffer] = []
    for flag, body, properties in items:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise Invalid(
                f"properties in a batch: expected at most {MAX_PROPERTIES_BYTES} bytes, "
                f"found {len(properties)}"
            )
        size = _MIN_SIZE + len(body) + len(properties)
        try:
            head = _HEAD.pack(size, 0, 0, flag, len(body))
        except struct.error as error:
            raise Invalid(f"message of {size} bytes in a batch: {error}") from error
        parts += (head, body, _LENGTH.pack(len(properties)), properties)
    return b"".join(parts)


class RecordCheck(NamedTuple):
    """Result of a check at one position of a log. A positive `size` is the record's size in bytes,
    and `ok` says whether the record is intact. `size` 0 with `ok` means a blank record, which ends
    the file. `size` -1 means that there is no record. `reason` describes the fault."""

    size: int
    ok: bool
    reason: str = ""


_BLANK_FOUND = RecordCheck(0, True)


def check_record(
    buffer: Buffer,
    position: int,
    *,
    end: int | None = None,
    check_crc: bool = True,
    check_property_crc: bool = False,
) -> RecordCheck:
    """Check the record at a position of a log with the readable bytes [0, end). Bad bytes never
    raise an error. `check_crc` checks the body. `check_property_crc` checks the whole record by its
    `__CRC32#` property instead, and fails without this property."""
    limit = len(buffer) if end is None else min(end, len(buffer))
    try:
        size, magic = size_and_magic(buffer, position, limit)
        if magic == MAGIC_BLANK and BLANK_SIZE <= size <= limit - position:
            return _BLANK_FOUND
        size = check_size(buffer, position, limit)
    except Corrupt as error:
        return RecordCheck(-1, False, str(error))
    try:
        message = StoredMessage(buffer, position, size, 0, locate(buffer, position, size))
    except Corrupt as error:
        return RecordCheck(size, False, str(error))
    if check_property_crc:
        if not property_crc_matches(buffer, position, size):
            return RecordCheck(-1, False, f"record at {position}: wrong or missing __CRC32#")
    elif check_crc:
        try:
            message.check_body()
        except Corrupt as error:
            return RecordCheck(-1, False, str(error))
    return RecordCheck(size, True)


def renew_property_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Update the CRC property of a record after a change in place. Raises Corrupt if the record has
    no such property."""
    if stored_property_crc(buffer, position, size) is None:
        raise make_corrupt_error(position, "CRC property", "the last 20 bytes", "none")
    end = position + size
    buffer[end - CRC_BLOCK_SIZE : end] = crc_block(property_crc(buffer, position, size))
