"""The units that a record has in its queues."""

from __future__ import annotations

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.local.queues.light_queues import LIGHT_QUEUE_ID, light_queue_offsets
from tieredstore.message.consume_queue import UNIT_DTYPE, pack_unit
from tieredstore.message.hashes import tags_code
from tieredstore.message.names import SCHEDULE_TOPIC
from tieredstore.message.properties import find_text
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)


def find_record_units(
    message: StoredMessage, delays_ms: tuple[int, ...], *, with_light_queues: bool
) -> list[QueueUnits]:
    """Find the units of one record: in its own queue, none for a prepared or rolled back one, and
    in the light queues that it names. delays_ms: those of the delay levels."""
    if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
        return []
    topic, properties = message.topic, message.properties_bytes
    code = _tags_code(message, topic, properties, delays_ms)
    packed = pack_unit(message.physical_offset, message.size, code)
    unit = np.frombuffer(packed, dtype=UNIT_DTYPE)
    time = np.array([message.store_timestamp_ms], dtype=np.int64)
    places = [(QueueKey(topic, message.queue_id), message.queue_offset)]
    if with_light_queues:
        places += [
            (QueueKey(name, LIGHT_QUEUE_ID), offset)
            for name, offset in light_queue_offsets(topic, properties)
        ]
    return [QueueUnits(key, offset, unit, time) for key, offset in places]


def _tags_code(
    message: StoredMessage, topic: str, properties: bytes, delays_ms: tuple[int, ...]
) -> int:
    if topic == SCHEDULE_TOPIC and delays_ms:
        text = find_text(properties, b"DELAY")
        if text is not None and text.isdigit() and int(text) > 0:
            level = min(int(text), len(delays_ms))
            return message.store_timestamp_ms + delays_ms[level - 1]
    return tags_code(find_text(properties, b"TAGS"))
