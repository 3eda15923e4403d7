"""Whether a record is the message that a consume queue unit or an index entry speaks of."""

from __future__ import annotations

from tieredstore.errors import Corrupt
from tieredstore.local.topics import LIGHT_PREFIX
from tieredstore.message.property_crc import CRC_BLOCK_SIZE, property_crc_matches
from tieredstore.message.record import StoredMessage, decode_record

_CRC_NAME = b"__CRC32#\x01"


def checked_record(
    record: memoryview, physical_offset: int, *, tags_code: int = 0
) -> StoredMessage:
    """The message in these bytes, with everything checked that it can be checked by: lengths, its
    own place, its body's CRC and, where it has one, the CRC of the whole record. Raises Corrupt.
    """
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


def check_place(message: StoredMessage, topic: str, queue_id: int, queue_offset: int) -> None:
    """Raise Corrupt when a message is not the one at that place of a queue. A light queue's
    messages are at home in another queue, so nothing is known about them."""
    if topic.startswith(LIGHT_PREFIX):
        return
    if (
        message.queue_offset != queue_offset
        or message.queue_id != queue_id
        or message.topic != topic
    ):
        raise Corrupt(
            f"expected offset {queue_offset} of {topic}/{queue_id}, found {message.queue_offset} "
            f"of {message.topic}/{message.queue_id}"
        )
