"""Compressed bodies: zlib, LZ4 frames and ZSTD (`docs/formats/record.md`).

Decompression stops at a size limit, so no input can use more memory.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from tieredstore.errors import Corrupt
from tieredstore.message.buffers import Buffer
from tieredstore.message.sysflag import CompressionType, compression_type

DEFAULT_BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""Default limit of a decompressed body."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MAX_WINDOW_BYTES = 128 * 1024 * 1024
_ZSTD_BLOCK_HEADER = 3
_ZSTD_LEAST_BYTES = 5
"""Size of the shortest frame header, in bytes."""
_SKIPPABLE_HEADER = 8
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of the magic of a skippable frame. Byte 1 is 0x5N."""
_JAVA_READ_BYTES = 128 * 1024 + 3
"""Number of bytes that Java's ZSTD stream reads at a time."""
_PIECE_BYTES = 256 * 1024


def decompress(data: Buffer, sys_flag: int, limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES) -> bytes:
    """Decompress a body to the bytes that Java's streams return. The compression type is read from
    `sys_flag`, whose bit 0 is ignored. Raises Corrupt if the data is truncated, has another type,
    or decompresses to more than `limit_bytes`."""
    compression = compression_type(sys_flag)
    try:
        if compression is CompressionType.ZLIB:
            return _inflate_zlib(data, limit_bytes)
        if compression is CompressionType.LZ4:
            return _inflate_lz4(data, limit_bytes)
        if compression is CompressionType.ZSTD:
            return _inflate_zstd(data, limit_bytes)
    except (zlib.error, zstandard.ZstdError, RuntimeError, ValueError, EOFError) as error:
        raise Corrupt(f"compressed body of {len(data)} bytes: {error}") from error
    raise Corrupt(f"compressed body: unknown compression type in sysFlag {sys_flag:#x}")


def _make_size_error(limit_bytes: int) -> Corrupt:
    return Corrupt(f"compressed body: expected at most {limit_bytes} bytes inflated, found more")


def _inflate_zlib(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress one stream. Bytes after the stream are ignored, as in Java."""
    inflater = zlib.decompressobj()
    # One byte above the limit tells an exact fit from an excess. A limit of 0 would mean no limit.
    body = inflater.decompress(data, limit_bytes + 1)
    if len(body) > limit_bytes:
        raise _make_size_error(limit_bytes)
    if not inflater.eof:
        raise _make_cut_error("zlib", data)
    return body


def _inflate_lz4(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress one or more LZ4 frames. Java's stream reads several frames as one."""
    rest = bytes(data)
    body = bytearray()
    while True:
        inflater = lz4.frame.LZ4FrameDecompressor()
        piece = inflater.decompress(rest, _PIECE_BYTES)
        body += piece
        while not inflater.eof and piece:
            if len(body) > limit_bytes:
                raise _make_size_error(limit_bytes)
            piece = inflater.decompress(b"", _PIECE_BYTES)
            body += piece
        if len(body) > limit_bytes:
            raise _make_size_error(limit_bytes)
        if not inflater.eof:
            raise _make_cut_error("LZ4", data)
        rest = inflater.unused_data
        if not rest:
            return bytes(body)


def _inflate_zstd(data: Buffer, limit_bytes: int) -> bytes:
    """Decompress frames, skipping the skippable ones. As in Java, a truncated frame ends the body
    without an error if another frame ended in the same read of Java's stream."""
    view = memoryview(data)
    body = bytearray()
    last_read = max(len(view) - 1, 0) // _JAVA_READ_BYTES * _JAVA_READ_BYTES
    begin = end = 0
    while end < len(view) or not end:
        begin, end = end, end + _measure_zstd_frame(view[end:])
        if end > len(view) and begin <= last_read:
            raise _make_cut_error("ZSTD", data)
        if view[begin : begin + 4] != _ZSTD_MAGIC:
            continue
        inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        with inflater.stream_reader(view[begin:end]) as reader:
            while piece := reader.read(_PIECE_BYTES):
                body += piece
                if len(body) > limit_bytes:
                    raise _make_size_error(limit_bytes)
    return bytes(body)


def _measure_zstd_frame(data: memoryview) -> int:
    """Return the length of the first frame from its block headers, or more than the length of
    `data` if it is truncated. The library reports no error for a truncated frame."""
    cut = len(data) + 1
    if len(data) < _ZSTD_LEAST_BYTES:
        return cut
    if data[0] >> 4 == 5 and data[1:4] == _SKIPPABLE_MAGIC:
        if len(data) < _SKIPPABLE_HEADER:
            return cut
        return _SKIPPABLE_HEADER + int.from_bytes(data[4:_SKIPPABLE_HEADER], "little")
    if data[:4] != _ZSTD_MAGIC:
        raise Corrupt("ZSTD body: a frame with an unknown magic number")
    position = zstandard.frame_header_size(data)
    if position > len(data):
        return cut
    has_checksum = zstandard.get_frame_parameters(data).has_checksum
    is_last = False
    while not is_last:
        if position + _ZSTD_BLOCK_HEADER > len(data):
            return cut
        block = int.from_bytes(data[position : position + _ZSTD_BLOCK_HEADER], "little")
        is_last = bool(block & 1)
        repeats_one_byte = block >> 1 & 3 == 1
        position += _ZSTD_BLOCK_HEADER + (1 if repeats_one_byte else block >> 3)
    return position + (4 if has_checksum else 0)


def _make_cut_error(kind: str, data: Buffer) -> Corrupt:
    return Corrupt(f"{kind} body: the stream does not end within its {len(data)} bytes")
