"""Light queues: additional queues of one record (`docs/formats/properties.md`).

The producer names the queues in INNER_MULTI_DISPATCH. The store adds the offset of the message in
each queue as INNER_MULTI_QUEUE_OFFSET.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import numpy as np

from tieredstore.errors import Invalid
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, QueueUnits
from tieredstore.message.lite import LITE_QUEUE_ID, may_name_light_queues
from tieredstore.message.names import LMQ_PREFIX, illegal_topic, is_closed_topic
from tieredstore.message.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    find_text,
    is_blank,
    remove_property,
)

MAX_NAMES: Final = 1024
_NAMES: Final = INNER_MULTI_DISPATCH.encode()
_OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET.encode()


def names_light_queues(properties: bytes) -> bool:
    """Return whether the properties may name light queues. This check is fast but has false
    positives. `light_queue_names` is exact."""
    return _NAMES + b"\x01" in properties


def light_queue_names(topic: str, properties: bytes) -> list[str]:
    """Return the light queues that a message of a topic names. Raises Invalid for an invalid
    name."""
    text = find_text(properties, _NAMES)
    # A half message enters them when it is committed.
    if text is None or is_blank(text) or not may_name_light_queues(topic) or is_closed_topic(topic):
        return []
    names = text.split(",")
    if len(names) > MAX_NAMES:
        raise Invalid(f"INNER_MULTI_DISPATCH: expected at most {MAX_NAMES} names", topic=topic)
    for name in names:
        if not name.startswith(LMQ_PREFIX) or illegal_topic(name, LITE_QUEUE_ID):
            raise Invalid(
                f"INNER_MULTI_DISPATCH: expected names that begin with {LMQ_PREFIX}, "
                f"found {name!r}",
                topic=topic,
            )
    return names


def add_light_offsets(properties: bytes, offsets: list[int]) -> bytes:
    """Return the properties to store. As in Java, offsets are added and WAIT is dropped."""
    kept = remove_property(remove_property(properties, b"WAIT"), _OFFSETS)
    if kept and not kept.endswith(b"\x02"):
        kept += b"\x02"
    text = ",".join(map(str, offsets)).encode("ascii")
    return kept + _OFFSETS + b"\x01" + text + b"\x02"


def drop_light_offsets(properties: bytes) -> bytes:
    """Return a message's properties without light queue offsets, for a message that is not put in
    light queues."""
    return remove_property(properties, _OFFSETS)


_MAX_FIRST: Final = 1 << 56
"""Maximum offset at which a light queue may begin. Files of later offsets would have no valid
name."""
_log = logging.getLogger(__name__)


def find_light_places(
    queues: ConsumeQueueStoreInterface, group: QueueUnits, skip: Callable[[str], object]
) -> QueueUnits | None:
    """Find the units of a message in a light queue. The last unit is at the offset that the record
    names. If a hole of up to MAX_NAMES offsets precedes it, the hole is filled with units of the
    same message, so that readers can continue. Returns None if the unit exists or the offset does
    not fit. `skip`: called with the reason."""
    queue = queues.get(group.key)
    offset, name = group.offset, group.key.topic
    if queue is None or not queue.max_physical_offset:
        if offset <= _MAX_FIRST:
            return group
        skip(f"{name}: expected to begin at most at {_MAX_FIRST}, found {offset}")
        return None
    position = int(group.units["physical_offset"][0])
    hole = offset - queue.max_offset
    if position < queue.max_physical_offset:
        return None
    if not hole:
        return group
    if not offset:
        _log.warning("%s: its offsets begin at 0 again at %d of the commit log", name, position)
        queue.initialize_with_offset(0)
        return group
    if not 0 < hole <= MAX_NAMES:
        skip(f"{name}: expected offset {queue.max_offset} next, found {offset}")
        return None
    units, times = np.repeat(group.units, hole + 1), np.repeat(group.store_timestamps_ms, hole + 1)
    return QueueUnits(group.key, queue.max_offset, units, times)
