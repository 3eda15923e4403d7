"""Light message queues: one record that belongs to further queues (`docs/formats/properties.md`).

The producer names them in INNER_MULTI_DISPATCH; the store adds the offset that the message has in
each of them as INNER_MULTI_QUEUE_OFFSET.
"""

from __future__ import annotations

from typing import Final

from tieredstore.errors import Invalid
from tieredstore.local.topics import illegal_topic
from tieredstore.message.names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from tieredstore.message.properties import find_text, is_blank, remove_property

LIGHT_QUEUE_ID: Final = 0
MAX_NAMES: Final = 1024
_NAMES: Final = b"INNER_MULTI_DISPATCH"
_OFFSETS: Final = b"INNER_MULTI_QUEUE_OFFSET"


def names_light_queues(properties: bytes) -> bool:
    """Tell whether the properties may name light queues (cheap; `light_queue_names` decides)."""
    return _NAMES + b"\x01" in properties


def light_queue_names(topic: str, properties: bytes) -> list[str]:
    """Find the light queues that a message of a topic names. Raises Invalid for a name that cannot
    be one."""
    text = find_text(properties, _NAMES)
    if text is None or is_blank(text) or not _may_name(topic):
        return []
    names = text.split(",")
    if len(names) > MAX_NAMES:
        raise Invalid(f"INNER_MULTI_DISPATCH: expected at most {MAX_NAMES} names", topic=topic)
    for name in names:
        if not name.startswith(LMQ_PREFIX) or illegal_topic(name, LIGHT_QUEUE_ID):
            raise Invalid(
                f"INNER_MULTI_DISPATCH: expected names that begin with {LMQ_PREFIX}, "
                f"found {name!r}",
                topic=topic,
            )
    return names


def _may_name(topic: str) -> bool:
    return not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) and topic != SCHEDULE_TOPIC


def add_light_offsets(properties: bytes, offsets: list[int]) -> bytes:
    """Make the properties as they are stored: offsets added, WAIT dropped, as Java does."""
    kept = remove_property(remove_property(properties, b"WAIT"), _OFFSETS)
    if kept and not kept.endswith(b"\x02"):
        kept += b"\x02"
    text = ",".join(map(str, offsets)).encode("ascii")
    return kept + _OFFSETS + b"\x01" + text + b"\x02"


def drop_light_offsets(properties: bytes) -> bytes:
    """Make the properties of a message that gets no place in the light queues that it names."""
    return remove_property(properties, _OFFSETS)


def light_queue_offsets(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """Find (light queue, offset in it) of a stored message; names that are no light queue's, and
    lists that do not match, give nothing."""
    names, offsets = find_text(properties, _NAMES), find_text(properties, _OFFSETS)
    if names is None or offsets is None or not _may_name(topic):
        return []
    pairs = list(zip(names.split(","), offsets.split(","), strict=False))
    if len(names.split(",")) != len(offsets.split(",")):
        return []
    return [
        (name, int(offset))
        for name, offset in pairs
        if name.startswith(LMQ_PREFIX) and offset.isdigit() and not illegal_topic(name, 0)
    ]
