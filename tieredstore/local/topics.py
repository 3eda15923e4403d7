"""Which topics are legal."""

from __future__ import annotations

from typing import Final

from tieredstore.message.names import RETRY_PREFIX, find_name_fault

MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_QUEUE_ID: Final = 65_535


def illegal_topic(topic: str, queue_id: int) -> str | None:
    """Tell why nothing may be put in this queue; None when all is well.

    The lengths are RocketMQ's. A topic is a folder's name, in the store and in a tier.
    """
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return f"topic {topic!r}: expected text"
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
    if not 0 < length <= limit:
        return f"topic: expected 1 to {limit} bytes, found {length}"
    fault = find_name_fault(topic)
    if fault is not None:
        return f"topic {topic!r}: expected a name that can be a folder's: it {fault}"
    if not 0 <= queue_id <= MAX_QUEUE_ID:
        return f"queue id: expected 0 to {MAX_QUEUE_ID}, found {queue_id}"
    return None
