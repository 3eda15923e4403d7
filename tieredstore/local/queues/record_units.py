"""Builds consume queue units from records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.local.queues.names import find_queue_fault
from tieredstore.message.columns.records import RecordColumns, properties_of, topics
from tieredstore.message.consume_queue import UNIT_DTYPE, make_units, pack_unit
from tieredstore.message.hashes import tags_code
from tieredstore.message.lite import LITE_QUEUE_ID, list_light_offsets
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC
from tieredstore.message.properties import find_integer, find_text
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

_SPECIAL_TOPICS: Final = frozenset({SCHEDULE_TOPIC, DELETION_TOPIC})


def find_units(
    piece: memoryview, records: RecordColumns, delays_ms: tuple[int, ...]
) -> Iterator[QueueUnits | StoredMessage]:
    """Yield the units of the records in a piece of the log, in groups of consecutive units of one
    queue, in order. A message that deletes a topic is yielded itself, before its unit. Records of
    invalid queues are skipped, and so are records of several messages, whose units have another
    format."""
    properties = properties_of(piece, records)
    names = topics(piece, records)
    queue_ids = records.queue_ids.tolist()
    special = ((records.sys_flags & (TRANSACTION_MASK | INNER_BATCH)) != 0).tolist()
    rows: dict[QueueKey, list[int]] = {}
    known_keys: dict[QueueKey, bool] = {}
    codes = np.zeros(len(names), dtype=np.int64)
    known: dict[str | None, int] = {}
    for row, (topic, found) in enumerate(zip(names, properties, strict=True)):
        key = QueueKey(topic, queue_ids[row])
        if key not in known_keys:
            known_keys[key] = find_queue_fault(*key) is None
        if (
            special[row]
            or topic in _SPECIAL_TOPICS
            or b"INNER_MULTI_" in found
            or not known_keys[key]
        ):
            yield from _find_runs(records, codes, rows)
            rows = {}
            start = int(records.positions[row])
            message = decode_record(piece[start : start + int(records.sizes[row])])
            if topic == DELETION_TOPIC:
                yield message
            if not message.sys_flag & INNER_BATCH:
                yield from find_record_units(message, delays_ms, with_light_queues=True)
            continue
        rows.setdefault(key, []).append(row)
        text = find_text(found, b"TAGS")
        code = known.get(text)
        if code is None:
            code = known[text] = tags_code(text)
        codes[row] = code
    yield from _find_runs(records, codes, rows)


def _find_runs(
    records: RecordColumns, codes: npt.NDArray[np.int64], rows: dict[QueueKey, list[int]]
) -> Iterator[QueueUnits]:
    for key, numbers in rows.items():
        chosen: Any = np.array(numbers)
        offsets = records.queue_offsets[chosen]
        units = make_units(records.physical_offsets[chosen], records.sizes[chosen], codes[chosen])
        times = records.store_timestamps[chosen]
        starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(starts):
            yield QueueUnits(key, int(offsets[start]), units[start:stop], times[start:stop])


def find_record_units(
    message: StoredMessage, delays_ms: tuple[int, ...], *, with_light_queues: bool
) -> list[QueueUnits]:
    """Return the units of one record in its own queue (none for a prepared or rolled back message)
    and in the light queues that it names. Invalid queues are skipped. `delays_ms`: delays of the
    delay levels."""
    if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
        return []
    topic, properties = message.topic, message.properties_bytes
    code = _tags_code(message, topic, properties, delays_ms)
    packed = pack_unit(message.physical_offset, message.size, code)
    unit = np.frombuffer(packed, dtype=UNIT_DTYPE)
    time = np.array([message.store_timestamp_ms], dtype=np.int64)
    places = []
    if find_queue_fault(topic, message.queue_id) is None:
        places.append((QueueKey(topic, message.queue_id), message.queue_offset))
    if with_light_queues:
        places += [
            (QueueKey(name, LITE_QUEUE_ID), offset)
            for name, offset in list_light_offsets(topic, properties)
        ]
    return [QueueUnits(key, offset, unit, time) for key, offset in places]


def _tags_code(
    message: StoredMessage, topic: str, properties: bytes, delays_ms: tuple[int, ...]
) -> int:
    if topic == SCHEDULE_TOPIC and delays_ms:
        level = find_integer(properties, b"DELAY") or 0
        if level > 0:
            level = min(level, len(delays_ms))
            return message.store_timestamp_ms + delays_ms[level - 1]
    return tags_code(find_text(properties, b"TAGS"))
