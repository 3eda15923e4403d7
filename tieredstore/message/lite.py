"""Light queues of a record, and lite topics (RIP-83): light queues below a parent topic, named
`%LMQ%$<parent>$<lite topic>`."""

from __future__ import annotations

from typing import Final, NamedTuple

from tieredstore.message.names import (
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    illegal_topic,
)
from tieredstore.message.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    find_text,
    is_blank,
    parse_number,
)
from tieredstore.message.record import StoredMessage

LITE_QUEUE_ID: Final = 0
"""Id of the single queue of a lite topic, and of every light queue."""
_SEPARATOR: Final = "$"
LITE_PREFIX: Final = LMQ_PREFIX + _SEPARATOR
"""Prefix of the light queues of lite topics."""


class LiteTopic(NamedTuple):
    """Lite topic. `parent`: the topic that its messages are sent to."""

    parent: str
    name: str

    @property
    def queue(self) -> str:
        """Name of the light queue of this lite topic."""
        return f"{LITE_PREFIX}{self.parent}{_SEPARATOR}{self.name}"


def parse_lite_topic(queue: str) -> LiteTopic | None:
    """Return the lite topic of a light queue, or None if its name is not that of a lite topic."""
    if not queue.startswith(LITE_PREFIX):
        return None
    parent, separator, name = queue.removeprefix(LITE_PREFIX).partition(_SEPARATOR)
    if not (parent and separator and name) or _SEPARATOR in name:
        return None
    return LiteTopic(parent, name)


def make_parent_prefix(parent: str) -> str:
    """Return the common prefix of the light queue names of a parent's lite topics."""
    return f"{LITE_PREFIX}{parent}{_SEPARATOR}"


def find_parent(queue: str) -> str:
    """Return the parent of a light queue's lite topic, or ""."""
    parts = queue.split(_SEPARATOR, 2)
    return parts[1] if queue.startswith(LITE_PREFIX) and len(parts) > 2 else ""


def find_lite_fault(lite: LiteTopic) -> str | None:
    """Return why no message can be put in this lite topic, or None. A `$` in its name would stop
    the dispatch of a Java broker."""
    if is_blank(lite.name):
        return "expected a name, found a blank one"
    for separator in (_SEPARATOR, ","):
        if separator in lite.name:
            return f"expected a name without {separator}, found {lite.name[:64]!r}"
    return illegal_topic(lite.queue, LITE_QUEUE_ID)


def may_name_light_queues(topic: str) -> bool:
    """Return whether messages of a topic can be in light queues."""
    return not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) and topic != SCHEDULE_TOPIC


def list_light_offsets(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """Return (light queue, offset in it) for each light queue of a stored message. Empty if a name
    is invalid or the lists differ in length."""
    names = find_text(properties, INNER_MULTI_DISPATCH.encode())
    offsets = find_text(properties, INNER_MULTI_QUEUE_OFFSET.encode())
    if names is None or offsets is None or not may_name_light_queues(topic):
        return []
    if names.count(",") != offsets.count(","):
        return []
    return [
        (name, number)
        for name, offset in zip(names.split(","), offsets.split(","), strict=True)
        if name.startswith(LMQ_PREFIX)
        and (number := parse_number(offset)) is not None
        and not illegal_topic(name, LITE_QUEUE_ID)
    ]


def find_light_offset(queue: str, message: StoredMessage) -> int | None:
    """Return the queue offset of a message in a light queue, or None if it is not in the queue."""
    offsets = list_light_offsets(message.topic, message.properties_bytes)
    return next((offset for name, offset in offsets if name == queue), None)
