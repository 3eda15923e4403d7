"""Positions of the fields of a commit log record (`docs/formats/record.md`)."""

from __future__ import annotations

import struct

import msgspec

from tieredstore.errors import Corrupt
from tieredstore.message import sysflag
from tieredstore.message.buffers import Buffer

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGICS = (MAGIC_V1, MAGIC_V2)
MAGIC_BLANK = 0xCBD43194
"""Magic of the record that ends a commit log file, and of the coda of old tiered segments."""

MAGIC_POSITION = 4
BODY_CRC_POSITION = 8
QUEUE_ID_POSITION = 12
FLAG_POSITION = 16
QUEUE_OFFSET_POSITION = 20
PHYSICAL_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
BORN_TIMESTAMP_POSITION = 40
BORN_HOST_POSITION = 48
# The positions below are for IPv4 hosts. Each preceding IPv6 host moves a field by V6_EXTRA bytes.
STORE_TIMESTAMP_POSITION = 56
STORE_HOST_POSITION = 64
RECONSUME_TIMES_POSITION = 72
PREPARED_TRANSACTION_OFFSET_POSITION = 76
BODY_LENGTH_POSITION = 84
FIXED_SIZE = 88
"""Position of the body for IPv4 hosts: the number of bytes before it, body length included."""

V6_EXTRA = 12
"""Bytes by which an IPv6 host is longer than an IPv4 host."""
HOSTLESS_SIZE = FIXED_SIZE - 16
"""Size of all fields before the body of a record, except the two hosts (bytes)."""
MAX_STORE_TIMESTAMP_END = STORE_TIMESTAMP_POSITION + V6_EXTRA + 8
"""Number of a record's first bytes that always contain its store timestamp, even with an IPv6 born
host."""
MIN_RECORD_SIZE = FIXED_SIZE + 3
"""Size of the smallest record: V1, IPv4 hosts, no body, no topic, no properties."""
BLANK_SIZE = 8
"""Size of the blank record: size and magic. After the record of a message, a commit log file always
has room for a blank record."""
CODA_SIZE = 16
"""Size of a coda: size 16, MAGIC_BLANK, i64 largest store timestamp."""

_SECTOR_BYTES = 512
"""Unit that a disk writes as a whole or not at all."""
_LAST_OF_MAGIC_V2 = MAGIC_V2 & 0xFF
_HOSTS_V6 = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
_BLANK_BYTES = MAGIC_BLANK.to_bytes(4, "big")
_SIZE_AND_MAGIC = struct.Struct(">iI")
_I4 = struct.Struct(">i")
_I2 = struct.Struct(">h")


class Sections(msgspec.Struct, gc=False, frozen=True):
    """Positions (in the buffer) and lengths, in bytes, of a record's fields of variable length."""

    born_host_size: int
    store_host_size: int
    body_offset: int
    body_length: int
    topic_offset: int
    topic_length: int
    properties_offset: int
    properties_length: int


def store_timestamp_position(sys_flag: int) -> int:
    """Return the position of the store timestamp in a record (bytes): 56, or 68 with an IPv6 born
    host."""
    if sys_flag & sysflag.BORN_HOST_V6:
        return STORE_TIMESTAMP_POSITION + V6_EXTRA
    return STORE_TIMESTAMP_POSITION


def host_sizes(sys_flag: int) -> tuple[int, int]:
    """Return the sizes of born host and store host: 8 or 20 bytes each."""
    return (
        20 if sys_flag & sysflag.BORN_HOST_V6 else 8,
        20 if sys_flag & sysflag.STORE_HOST_V6 else 8,
    )


def make_corrupt_error(position: int, field: str, expected: str, found: object) -> Corrupt:
    """Return the error for a bad record, with its position in the buffer as `offset`."""
    return Corrupt(
        f"record at {position}: {field}: expected {expected}, found {found}", offset=position
    )


def size_and_magic(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Read the first eight bytes of a record. Raises Corrupt if they are not within [0, end)."""
    if position < 0 or position + BLANK_SIZE > end:
        raise make_corrupt_error(
            position, "size and magic", f"8 bytes before {end}", max(end - position, 0)
        )
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    return size, magic


def is_head_of_message(head: Buffer, size: int) -> bool:
    """Return whether `head` is the beginning of a message record of this size. False for fewer than
    8 bytes."""
    return len(head) >= BLANK_SIZE and _SIZE_AND_MAGIC.unpack_from(head) in (
        (size, MAGIC_V1),
        (size, MAGIC_V2),
    )


def was_head_written(head: Buffer, size: int, position: int) -> bool:
    """Return whether the first 8 bytes of a message record of this size were written. False if an
    interrupted write may have left them: all zeros, or zeros on one side of a sector boundary. Any
    other bytes were written completely, and are damaged if they are not the head of a record.
    `position`: position of the record in its file (bytes)."""
    if is_head_of_message(head, size):
        return True
    left = bytes(head[:BLANK_SIZE])
    if left == bytes(BLANK_SIZE):
        return False
    border = -position % _SECTOR_BYTES
    if not 0 < border < BLANK_SIZE:
        return True
    before, behind = bytes(border), bytes(BLANK_SIZE - border)
    wholes = [_SIZE_AND_MAGIC.pack(size, magic) for magic in (MAGIC_V1, MAGIC_V2)]
    return all(left not in (before + whole[border:], whole[:border] + behind) for whole in wholes)


def has_magic(head: Buffer) -> bool:
    """Return whether `head` is the beginning of a message record of any size."""
    return int.from_bytes(head[MAGIC_POSITION:BODY_CRC_POSITION]) in MAGICS


def names_place(head: Buffer, queue_offset: int, physical_offset: int) -> bool:
    """Return whether a record contains this queue offset or this position in its commit log."""
    queue = int.from_bytes(head[QUEUE_OFFSET_POSITION:PHYSICAL_OFFSET_POSITION])
    return queue == queue_offset or physical_offset == int.from_bytes(
        head[PHYSICAL_OFFSET_POSITION:SYS_FLAG_POSITION]
    )


def identify(head: Buffer) -> tuple[int, int, int]:
    """Return queue offset, commit log offset and store time (epoch ms) of a record. `head` has at
    least the first MAX_STORE_TIMESTAMP_END bytes of the record."""
    time = store_timestamp_position(_I4.unpack_from(head, SYS_FLAG_POSITION)[0])
    return (
        int.from_bytes(head[QUEUE_OFFSET_POSITION:PHYSICAL_OFFSET_POSITION]),
        int.from_bytes(head[PHYSICAL_OFFSET_POSITION:SYS_FLAG_POSITION]),
        int.from_bytes(head[time : time + 8], signed=True),
    )


def is_blank_record(buffer: Buffer, position: int) -> bool:
    """Return whether the record that ends a commit log file begins at `position`. False at the end
    of the buffer."""
    return bytes(buffer[position + MAGIC_POSITION : position + BLANK_SIZE]) == _BLANK_BYTES


def check_size(buffer: Buffer, position: int, end: int) -> int:
    """Check the magic and the bounds of the record at `position`, and return its size. Raises
    Corrupt."""
    size, magic = size_and_magic(buffer, position, end)
    if magic not in MAGICS:
        raise make_corrupt_error(position, "magic", "daa320a7 or daa320ab", f"{magic:08x}")
    if size < MIN_RECORD_SIZE:
        raise make_corrupt_error(position, "size", f"at least {MIN_RECORD_SIZE}", size)
    if position + size > end:
        raise make_corrupt_error(
            position, "size", f"at most {end - position} (end of the buffer)", size
        )
    return size


def locate(buffer: Buffer, position: int, size: int) -> Sections:
    """Return the sections of a record whose size and magic were checked. Raises Corrupt if a length
    exceeds the record, or the lengths do not add up to `size`."""
    end = position + size
    sys_flag = _I4.unpack_from(buffer, position + SYS_FLAG_POSITION)[0]
    born, store = host_sizes(sys_flag) if sys_flag & _HOSTS_V6 else (8, 8)
    body = position + HOSTLESS_SIZE + born + store
    if body + 3 > end:
        raise make_corrupt_error(position, "size", f"at least {body + 3 - position}", size)
    body_length = _I4.unpack_from(buffer, body - 4)[0]
    if not 0 <= body_length <= end - body - 3:
        raise make_corrupt_error(position, "body length", f"0 to {end - body - 3}", body_length)
    topic = body + body_length
    # The magics differ in their last byte only, and the caller has checked the others.
    if buffer[position + 7] == _LAST_OF_MAGIC_V2:
        if topic + 4 > end:
            raise make_corrupt_error(position, "size", f"at least {topic + 4 - position}", size)
        topic_length = _I2.unpack_from(buffer, topic)[0]
        topic += 2
    else:
        topic_length = buffer[topic]
        if topic_length > 127:  # a signed byte in Java
            topic_length -= 256
        topic += 1
    if not 0 <= topic_length <= end - topic - 2:
        raise make_corrupt_error(position, "topic length", f"0 to {end - topic - 2}", topic_length)
    properties = topic + topic_length + 2
    properties_length = _I2.unpack_from(buffer, properties - 2)[0]
    if properties_length != end - properties:
        raise make_corrupt_error(
            position, "properties length", str(end - properties), properties_length
        )
    return Sections(
        born, store, body, body_length, topic, topic_length, properties, properties_length
    )
