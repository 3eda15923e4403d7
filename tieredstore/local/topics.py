"""Which topics are legal, and the delay levels."""

from __future__ import annotations

import re
from typing import Final

from tieredstore.errors import Invalid
from tieredstore.message.names import RETRY_PREFIX, find_name_fault

MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_QUEUE_ID: Final = 65_535

_DELAY: Final = re.compile(r"(\d+)([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


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


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse the delays in ms of `messageDelayLevel`, level 1 first. Raises Invalid."""
    delays = []
    for word in text.split():
        match = _DELAY.fullmatch(word)
        if match is None:
            raise Invalid(f"messageDelayLevel: expected a number with s, m, h or d, found {word!r}")
        delays.append(int(match[1]) * _UNITS_MS[match[2]])
    return tuple(delays)
