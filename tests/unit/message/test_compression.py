"""Tests of compressed bodies, and of bodies that must not be inflated (fault I04)."""

from __future__ import annotations

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


def test_i04_a_zstd_frame_that_asks_for_a_huge_window_is_corrupt() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(BODY) + compressor.flush()
    with pytest.raises(Corrupt, match="compressed body"):
        decompress(frame, flag(CompressionType.ZSTD), 1 << 20)


@pytest.mark.parametrize("compression", TYPES)
def test_i04_cut_wrong_and_trailing_bytes_are_corrupt(compression: CompressionType) -> None:
    data = compress(BODY, compression)
    broken = [data[:length] for length in range(0, len(data), 7)]
    broken += [data + b"x", data + b"\0" * 9, b"\xff" + data, b"\0" * len(data)]
    for bad in broken:
        with pytest.raises(Corrupt, match="body"):
            decompress(bad, flag(compression))


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
