"""Encodes and decodes the blocks of a trace. A block has the arrivals and reads of a few seconds
(`docs/formats/trace.md`). Blocks are independent, so a damaged or torn block affects no other."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.message.crc import CRC_MASK, raw_crc32

Rows = npt.NDArray[np.void]

PUT_DTYPE: Final = np.dtype(
    [
        ("queue", "<i4"),
        ("offset", "<i8"),
        ("messages", "<i8"),
        ("size_bytes", "<i8"),
        ("begin_ms", "<i8"),
        ("end_ms", "<i8"),
    ]
)
"""Row for messages of a queue with consecutive offsets. `queue`: index of the queue in the block's
`queues`. `begin_ms`, `end_ms`: store times of the first message and of one of the last messages,
epoch ms."""
GET_DTYPE: Final = np.dtype(
    [
        ("group", "<i4"),
        ("queue", "<i4"),
        ("from_tier", "<i1"),
        ("offset", "<i8"),
        ("end_offset", "<i8"),
        ("gets", "<i8"),
        ("messages", "<i8"),
        ("begin_ms", "<i8"),
        ("end_ms", "<i8"),
    ]
)
"""Row for consecutive gets of a consumer group. `messages`: number of messages in the answers,
without those that filters rejected. `begin_ms`, `end_ms`: times of the first and of the last
answer, epoch ms."""

MAGIC: Final = b"TSTRACE1"
MAX_CONTENT_BYTES: Final = 256 << 20
_HEAD: Final = struct.Struct("<8sII")
_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class TraceBlock:
    """Arrivals and reads between two times (epoch ms). `dropped`: number of lost rows. `puts`,
    `gets`: arrays of PUT_DTYPE and GET_DTYPE, which refer to queues and groups by their index in
    `queues` and `groups`."""

    begin_ms: int
    end_ms: int
    dropped: int
    queues: list[QueueKey]
    groups: list[str]
    puts: Rows
    gets: Rows


class _Content(msgspec.Struct, array_like=True):
    begin_ms: int
    end_ms: int
    dropped: int
    queues: list[tuple[str, int]]
    groups: list[str]
    puts: bytes
    gets: bytes


_decoder: Final = msgspec.msgpack.Decoder(_Content)


def encode_block(block: TraceBlock) -> bytes:
    """Encode a block with its head."""
    content = msgspec.msgpack.encode(
        _Content(
            block.begin_ms,
            block.end_ms,
            block.dropped,
            [(key.topic, key.queue_id) for key in block.queues],
            block.groups,
            _join_columns(block.puts),
            _join_columns(block.gets),
        )
    )
    packed = zlib.compress(content, _LEVEL)
    return _HEAD.pack(MAGIC, len(packed), raw_crc32(packed) & CRC_MASK) + packed


def find_blocks(data: bytes) -> tuple[list[TraceBlock], int]:
    """Decode the blocks in the bytes of a file. Also returns how often other content was found,
    such as an incomplete block."""
    blocks: list[TraceBlock] = []
    damaged = position = 0
    while 0 <= position < len(data):
        try:
            block, position = _decode_block(data, position)
            blocks.append(block)
        except Corrupt:
            damaged += any(memoryview(data)[position:])  # zeros up to the end are ignored
            position = data.find(MAGIC, position + 1)
    return blocks, damaged


def _decode_block(data: bytes, position: int) -> tuple[TraceBlock, int]:
    begin = position + _HEAD.size
    if len(data) < begin:
        raise Corrupt("the head of a block is cut off", offset=position)
    magic, length, crc = _HEAD.unpack_from(data, position)
    packed = memoryview(data)[begin : begin + length]
    if magic != MAGIC or len(packed) != length or raw_crc32(packed) & CRC_MASK != crc:
        raise Corrupt("no block of a trace, or not all of it", offset=position)
    unpacker = zlib.decompressobj()
    try:
        content = _decoder.decode(unpacker.decompress(packed, MAX_CONTENT_BYTES))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"no content of a block: {error}", offset=position) from error
    block = TraceBlock(
        content.begin_ms,
        content.end_ms,
        content.dropped,
        [QueueKey(*queue) for queue in content.queues],
        content.groups,
        _split_columns(content.puts, PUT_DTYPE, position),
        _split_columns(content.gets, GET_DTYPE, position),
    )
    _check_numbers(block, position)
    return block, begin + length


def _check_numbers(block: TraceBlock, position: int) -> None:
    for rows, name, count in (
        (block.puts, "queue", len(block.queues)),
        (block.gets, "queue", len(block.queues)),
        (block.gets, "group", len(block.groups)),
    ):
        if len(rows) and not (rows[name].min() >= 0 and rows[name].max() < count):
            raise Corrupt(f"a {name} without a name", offset=position)


def _join_columns(rows: Rows) -> bytes:
    """Concatenate the columns of the rows, which compresses better than rows."""
    names = rows.dtype.names or ()
    return b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in names)


def _split_columns(data: bytes, dtype: np.dtype[np.void], position: int) -> Rows:
    count, rest = divmod(len(data), dtype.itemsize)
    if rest:
        raise Corrupt(f"{len(data)} bytes are no whole rows", offset=position)
    rows = np.zeros(count, dtype)
    at = 0
    for name in dtype.names or ():
        kind = dtype[name]
        rows[name] = np.frombuffer(data, kind, count, at)
        at += count * kind.itemsize
    return rows
