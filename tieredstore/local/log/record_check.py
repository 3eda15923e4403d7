"""Whether a record is the message that a consume queue unit or an index entry speaks of.

What can be checked of a record is checked each time that it is served: its lengths, its place in
the log and in its queue, its topic, the CRC of its body and, where it has one, that of the whole
record.
"""

from __future__ import annotations

import struct
from typing import Final

from tieredstore.errors import Corrupt
from tieredstore.local.topics import MAX_TOPIC_BYTES
from tieredstore.message.crc import CRC_BLOCK_SIZE, CRC_MASK, property_crc_matches, raw_crc32
from tieredstore.message.layout import (
    BODY_LENGTH_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_SIZE,
    MAGIC_V1,
)
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_NAME_END: Final = CRC_BLOCK_SIZE - len(_CRC_NAME)
_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
# Size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, hosts and times,
# body length.
_HEAD: Final = struct.Struct(f">iIiiiqqi{BODY_LENGTH_POSITION - BORN_TIMESTAMP_POSITION}xi")


class QueuePlaces:
    """What the records of one queue have in common."""

    __slots__ = ("is_light", "queue_id", "topic", "topic_field")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        # A light queue's messages are at home in another queue: nothing is known of their place.
        self.is_light = topic.startswith(LMQ_PREFIX)
        encoded = topic.encode()
        is_short = len(encoded) <= MAX_TOPIC_BYTES and not self.is_light
        self.topic_field = bytes([len(encoded)]) + encoded if is_short else b""


def check_message(
    record: memoryview, physical_offset: int, tags_code: int, places: QueuePlaces, offset: int
) -> StoredMessage:
    """Decode the message of a queue at an offset from its record. Raises Corrupt when it is another
    one or none."""
    size = len(record)
    topic_field = places.topic_field
    if topic_field and size > FIXED_SIZE + len(topic_field) + 2:
        found = _HEAD.unpack_from(record)
        found_size, magic, crc, queue_id, _, queue_offset, own_offset, flag, body_length = found
        body_end = FIXED_SIZE + body_length
        properties = body_end + len(topic_field) + 2
        # The plain case in one go: V1, IPv4, all as expected.
        if (
            found_size == size
            and magic == MAGIC_V1
            and queue_id == places.queue_id
            and queue_offset == offset
            and own_offset == physical_offset
            and not flag & _V6
            and body_length >= 0
            and properties < size
            and record[body_end : properties - 2] == topic_field
            and record[properties - 2] << 8 | record[properties - 1] == size - properties
            and record[size - 1]
            and raw_crc32(record[FIXED_SIZE:body_end]) & CRC_MASK == crc
            and bytes(record[size - CRC_BLOCK_SIZE : size - _CRC_NAME_END]) != _CRC_NAME
        ):
            return StoredMessage(record, 0, size, tags_code)
    message = check_stored_record(record, physical_offset, tags_code=tags_code)
    if not places.is_light and (
        message.queue_offset != offset
        or message.queue_id != places.queue_id
        or message.topic != places.topic
    ):
        raise Corrupt(
            f"expected offset {offset} of {places.topic}/{places.queue_id}, found "
            f"{message.queue_offset} of {message.topic}/{message.queue_id}"
        )
    return message


def check_stored_record(
    record: memoryview, physical_offset: int, *, tags_code: int = 0
) -> StoredMessage:
    """Decode the message in these bytes, wherever its queue is. Raises Corrupt."""
    message = decode_record(record, tags_code=tags_code)
    if message.size != len(record):
        raise Corrupt(f"size: expected {len(record)}, found {message.size}")
    if message.physical_offset != physical_offset:
        raise Corrupt(
            f"physical offset: expected {physical_offset}, found {message.physical_offset}"
        )
    message.check_body()
    sections = message.sections
    for name, end, length in (
        ("topic", sections.topic_offset + sections.topic_length, sections.topic_length),
        ("properties", len(record), sections.properties_length),
    ):
        # Text does not end in NUL, a record of which the end was not written does.
        if length and record[end - 1] == 0:
            raise Corrupt(f"{name}: expected text, found zeros at the end")
    tail = bytes(record[-CRC_BLOCK_SIZE : -CRC_BLOCK_SIZE + len(_CRC_NAME)])
    if tail == _CRC_NAME and property_crc_matches(record, 0, len(record)) is False:
        raise Corrupt("CRC of the whole record: does not match")
    return message
