"""Messages made of stored ones, to be put once more."""

from __future__ import annotations

from tieredstore.message.encoding import Message
from tieredstore.message.properties import find_property, set_property
from tieredstore.message.record import StoredMessage


def rebuild(
    stored: StoredMessage, topic: str, queue_id: int, properties: bytes | None = None
) -> Message:
    """Make a message of a stored one for another queue: body, flags, born time and host, and
    reconsume times as they are; properties too unless some are given."""
    return Message(
        topic,
        bytes(stored.body),
        queue_id,
        stored.properties_bytes if properties is None else properties,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host_bytes,
        stored.reconsume_times,
    )


def set_dead_letter_origin(properties: bytes, message_id: str) -> bytes:
    """Say of which topic (its RETRY_TOPIC) and message a dead letter is, unless that is said
    already."""
    topic = find_property(properties, b"RETRY_TOPIC")
    if topic is None or find_property(properties, b"DLQ_ORIGIN_TOPIC") is not None:
        return properties
    properties = set_property(properties, b"DLQ_ORIGIN_TOPIC", topic)
    return set_property(properties, b"DLQ_ORIGIN_MESSAGE_ID", message_id.encode())
