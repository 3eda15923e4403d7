"""Tests of compressed bodies, and of the limit on decompressed size (fault I04)."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard

from tests.kit.record_forms import compress
from tieredstore.errors import Corrupt
from tieredstore.message import sysflag
from tieredstore.message.compression import decompress
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.record import decode_record
from tieredstore.message.sysflag import CompressionType

BODY = b"0123456789abcdef" * 300
TYPES = list(CompressionType)


def flag(compression: CompressionType) -> int:
    return sysflag.set_compression(0, compression)


@pytest.mark.parametrize("compression", TYPES)
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(3 << 20)])
def test_bodies_come_back(compression: CompressionType, body: bytes) -> None:
    assert decompress(compress(body, compression), flag(compression)) == body
    assert decompress(memoryview(compress(body, compression)), flag(compression)) == body


def test_flags() -> None:
    assert sysflag.set_compression(0x30, CompressionType.ZSTD) == 0x231
    assert sysflag.set_compression(0x301, CompressionType.LZ4) == 0x101
    assert sysflag.compression_type(0x001) is CompressionType.ZLIB
    assert sysflag.compression_type(0x301) is CompressionType.ZLIB
    assert sysflag.compression_type(0x401) is None
    assert sysflag.transaction_type(0x1C) == sysflag.TRANSACTION_ROLLBACK


def test_bodies_of_old_producers_are_zlib() -> None:
    assert decompress(zlib.compress(BODY), sysflag.COMPRESSED) == BODY


@pytest.mark.parametrize("compression", TYPES)
def test_i04_the_limit_is_exact(compression: CompressionType) -> None:
    data = compress(BODY, compression)
    assert decompress(data, flag(compression), len(BODY)) == BODY
    with pytest.raises(Corrupt, match=f"at most {len(BODY) - 1} bytes"):
        decompress(data, flag(compression), len(BODY) - 1)


@pytest.mark.parametrize("compression", TYPES)
def test_i04_a_bomb_stops_at_the_limit(compression: CompressionType) -> None:
    bomb = compress(bytes(64 << 20), compression)
    assert len(bomb) < 1 << 19
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="at most 1000000 bytes inflated"):
            decompress(bomb, flag(compression), 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_i04_many_small_frames_stop_at_the_limit_too() -> None:
    for compression in (CompressionType.LZ4, CompressionType.ZSTD):
        bomb = compress(bytes(1000), compression) * 2000
        with pytest.raises(Corrupt, match="at most 1000000 bytes inflated"):
            decompress(bomb, flag(compression), 1_000_000)


def compress_with_window(window_log: int) -> bytes:
    """Return BODY as a ZSTD frame that requires a window of 2^`window_log` bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=False
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(BODY) + compressor.flush()


def test_i04_a_zstd_frame_that_asks_for_a_huge_window_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="compressed body"):
        decompress(compress_with_window(28), flag(CompressionType.ZSTD))


@pytest.mark.parametrize("compression", TYPES)
def test_i04_cut_and_wrong_bodies_are_corrupt(compression: CompressionType) -> None:
    data = compress(BODY, compression)
    broken = [data[:length] for length in range(0, len(data), 7)]
    broken += [b"\xff" + data, b"\0" * len(data)]
    if compression is not CompressionType.ZLIB:
        broken += [data + b"x" * 9, data + b"\0" * 9]
    for bad in broken:
        with pytest.raises(Corrupt, match="body"):
            decompress(bad, flag(compression))


@pytest.mark.parametrize("rest", [b"x", b"\0" * 9, zlib.compress(b"no more")])
def test_j43_bytes_behind_a_zlib_stream_are_ignored_as_in_java(rest: bytes) -> None:
    assert decompress(zlib.compress(BODY) + rest, flag(CompressionType.ZLIB)) == BODY


@pytest.mark.parametrize("length", [0, 3, 300])
def test_j43_skippable_frames_are_no_part_of_the_body_as_in_java(length: int) -> None:
    """As in Java, skippable frames are ignored in LZ4 and ZSTD bodies."""
    for number in (0, 15):
        skippable = struct.pack("<II", 0x184D2A50 + number, length) + bytes(length)
        for compression in (CompressionType.LZ4, CompressionType.ZSTD):
            data = compress(BODY, compression)
            for stream in (skippable + data, data + skippable):
                assert decompress(stream, flag(compression)) == BODY
            assert decompress(data + skippable + data, flag(compression)) == BODY * 2
            with pytest.raises(Corrupt, match="does not end"):
                decompress(skippable[:-1], flag(compression))
        assert decompress(skippable, flag(CompressionType.ZSTD)) == b""


def test_j43_a_cut_frame_behind_a_whole_one_ends_a_zstd_body_as_in_java() -> None:
    """As in Java, an incomplete frame after a complete one ends a ZSTD body without an error."""
    frame = zstandard.compress(BODY)
    for cut in (b"x", b"\0" * 4, frame[:3], frame[:20], b"\x50\x2a\x4d\x18\x09\0\0\0s"):
        assert decompress(frame + cut, flag(CompressionType.ZSTD)) == BODY
    block = zstandard.compress(random.Random(1).randbytes(200_000))
    assert decompress(frame + block[:90_000], flag(CompressionType.ZSTD)).startswith(BODY)
    for cut in (b"x" * 5, frame[1:]):
        with pytest.raises(Corrupt, match="unknown magic"):
            decompress(frame + cut, flag(CompressionType.ZSTD))
    with pytest.raises(Corrupt, match="does not end"):
        decompress(frame + block[:150_000], flag(CompressionType.ZSTD))


def test_j43_a_zstd_frame_with_the_largest_window_of_java_is_read() -> None:
    assert decompress(compress_with_window(27), flag(CompressionType.ZSTD)) == BODY


def test_i04_an_unknown_type_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="unknown compression type in sysFlag 0x701"):
        decompress(BODY, 0x701)


def test_frames_in_a_row_are_one_body_as_in_java() -> None:
    for compression, frames in (
        (CompressionType.LZ4, lz4.frame.compress(b"ab") + lz4.frame.compress(b"cd")),
        (CompressionType.ZSTD, zstandard.compress(b"ab") + zstandard.compress(b"cd")),
    ):
        assert decompress(frames, flag(compression)) == b"abcd"


def test_zstd_frames_with_checksum_and_without_content_size() -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    data = compressor.compress(BODY)
    assert decompress(data, flag(CompressionType.ZSTD)) == BODY
    with pytest.raises(Corrupt, match="does not end"):
        decompress(data[:-1], flag(CompressionType.ZSTD))
    with pytest.raises(Corrupt, match="compressed body"):
        decompress(data[:-1] + bytes([data[-1] ^ 1]), flag(CompressionType.ZSTD))


def test_a_message_says_where_its_body_is_bad() -> None:
    good = Message.create("T", compress(BODY, CompressionType.LZ4), sys_flag=0x101)
    bad = Message.create("T", b"no frame", sys_flag=0x101)
    buffer = encode_record(good, 0, 0, 1) + encode_record(bad, 1, 0, 1)
    first = decode_record(buffer)
    assert first.decode_body() == BODY
    second = decode_record(buffer, first.size)
    with pytest.raises(Corrupt, match=f"record at {first.size}: compressed body") as raised:
        second.decode_body()
    assert raised.value.offset == first.size
    with pytest.raises(Corrupt, match="record at 0"):
        first.decode_body(limit_bytes=10)


def test_an_empty_body_with_the_compressed_bit_is_empty_as_in_java() -> None:
    record = encode_record(Message.create("T", b"", sys_flag=0x201), 0, 0, 1)
    assert bytes(decode_record(record).decode_body()) == b""
