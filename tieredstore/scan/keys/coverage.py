"""Part of a queue that the index files cover. It is not recorded, so it is found by looking up the
keys of some messages (probes). An index may begin late or lag behind the queues, and clocks may be
set. But each queue is indexed in offset order."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import keys_to_index
from tieredstore.message.record import decode_record
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.keys.index_files import IndexFiles, is_indexable
from tieredstore.scan.read.batches import find_usable_units

_WITNESSES = 16
"""Maximum number of messages that one probe reads until it finds a message with a key. A message
that is damaged or has no key cannot show whether the index covers it."""
_PLACES = 32
"""Number of probes in a queue if neither of its ends is indexed."""


def find_indexed(reader: QueueReader, index: IndexFiles, low: int, high: int) -> tuple[int, int]:
    """Return the indexed queue offsets [first, until) within [low, high), which must be in one run
    of units. The range is empty if no probe is indexed. Raises Corrupt for a damaged index,
    Unavailable."""

    def is_indexed(number: int) -> bool:
        return _is_indexed(reader, index, range(number, min(number + _WITNESSES, high)))

    is_first = is_indexed(low)
    backwards = range(high - 1, max(low, high - _WITNESSES) - 1, -1)
    is_last = _is_indexed(reader, index, backwards, newest_first=True)
    if is_first and is_last:
        return low, high
    inside = low if is_first else high - 1
    if not is_first and not is_last:
        found = next((place for place in _places_between(low, high) if is_indexed(place)), None)
        if found is None:
            return low, low
        inside = found
    first = low if is_first else bisect.bisect_left(range(inside), True, low, key=is_indexed)
    until = high
    if not is_last:
        until = bisect.bisect_left(
            range(high), True, inside, key=lambda number: not is_indexed(number)
        )
    return first, until


def _places_between(low: int, high: int) -> Iterable[int]:
    """Yield the positions that divide the range into halves, quarters, and so on."""
    parts = 2
    while parts <= _PLACES:
        for part in range(1, parts, 2):
            place = low + (high - low) * part // parts
            if low < place < high - 1:
                yield place
        parts *= 2


def _is_indexed(
    reader: QueueReader, index: IndexFiles, numbers: Iterable[int], *, newest_first: bool = False
) -> bool:
    """Return whether the index has the first of the given messages with a key."""
    for number in numbers:
        try:
            units, usable = find_usable_units(reader, reader.read_units(number, 1), number)
            offset, size = int(units.offsets[0]), int(units.sizes[0])
            if not usable[0]:
                continue
            message = decode_record(reader.commit_log.read(offset, size))
            keys = keys_to_index(message.properties_bytes)
        except Corrupt:
            continue
        topic = reader.queue.topic
        key = next((key for key in keys if is_indexable(topic, key)), None)
        if key is not None:
            place = reader.queue.queue_id, offset, size
            return index.has(topic, key, place, newest_first=newest_first)
    return False
