"""Looking into a queue without reading it whole: fields of a message, search by store time."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.message import layout
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.flat.consume_queue_file import FlatConsumeQueueFile
from tieredstore.tier.reading import Reading

_I4 = struct.Struct(">i")
_I8 = struct.Struct(">q")
_UNITS_AT_ONCE = 1024


def queue_offset_at(commit_log: FlatAppendFile, offset: int) -> Reading[int]:
    """Read the queue offset that the message at a commit log offset names; -1 when none is
    there."""
    found = yield from commit_log.read(offset, layout.QUEUE_OFFSET_POSITION + 8)
    if len(found) < layout.QUEUE_OFFSET_POSITION + 8:
        return -1
    value: int = _I8.unpack_from(found, layout.QUEUE_OFFSET_POSITION)[0]
    return value


def store_timestamp_at(commit_log: FlatAppendFile, offset: int) -> Reading[int]:
    """Read the store time (ms) of the message at a commit log offset; -1 when none is there."""
    found = yield from commit_log.read(offset, layout.MAX_STORE_TIMESTAMP_END)
    if len(found) < layout.MAX_STORE_TIMESTAMP_END:
        return -1
    flag: int = _I4.unpack_from(found, layout.SYS_FLAG_POSITION)[0]
    value: int = _I8.unpack_from(found, layout.store_timestamp_position(flag))[0]
    return value


def find_first_unit(
    consume_queue: FlatConsumeQueueFile, ranges: Sequence[tuple[int, int]], position: int
) -> Reading[int | None]:
    """Find the queue offset of the first message that begins at or behind a commit log offset; None
    when there is none. ranges: as in `find_first_at_or_after`."""
    for begin, end in ranges:
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            units = yield from consume_queue.read_units(middle, 1)
            if not len(units) or int(units["physical_offset"][0]) >= position:
                high = middle
            else:
                low = middle + 1
        if low < end:
            return low
    return None


def find_first_at_or_after(
    commit_log: FlatAppendFile,
    consume_queue: FlatConsumeQueueFile,
    ranges: Sequence[tuple[int, int]],
    timestamp_ms: int,
) -> Reading[int | None]:
    """Find the queue offset of the first message stored at or after a time; None when there is
    none.

    ranges: [first, behind last) queue offsets that have messages, ascending. Store times rise
    with queue offsets (equal ones are common; where a clock went back, some message at which the
    time is crossed is found).
    """
    for begin, end in ranges:
        last = yield from _time_of(commit_log, consume_queue, end - 1)
        if last >= timestamp_ms:
            found = yield from _search(commit_log, consume_queue, begin, end - 1, timestamp_ms)
            return found
    return None


def _search(
    commit_log: FlatAppendFile,
    consume_queue: FlatConsumeQueueFile,
    low: int,
    high: int,
    timestamp_ms: int,
) -> Reading[int]:
    """Smallest queue offset in [low, high] at or after the time; message `high` is known to be."""
    low, high = _narrow(consume_queue, low, high, timestamp_ms)
    units: npt.NDArray[np.void] | None = None
    base = 0
    while low < high:
        if units is None and high - low <= _UNITS_AT_ONCE:
            base = low
            units = yield from consume_queue.read_units(low, high - low)
        middle = (low + high) // 2
        if units is not None and middle - base < len(units):
            position = int(units["physical_offset"][middle - base])
            found = yield from store_timestamp_at(commit_log, position)
        else:
            found = yield from _time_of(commit_log, consume_queue, middle)
        if found >= timestamp_ms:
            high = middle
        else:
            low = middle + 1
    return low


def _narrow(
    consume_queue: FlatConsumeQueueFile, low: int, high: int, timestamp_ms: int
) -> tuple[int, int]:
    """Leave out whole segments that end before the time (their times are in the metadata)."""
    for segment in consume_queue.segments:
        first = segment.base_offset // consume_queue.unit_bytes
        behind = segment.end_offset // consume_queue.unit_bytes
        if low < behind <= high and first <= low and segment.end_ms < timestamp_ms:
            low = behind
    return low, high


def _time_of(
    commit_log: FlatAppendFile, consume_queue: FlatConsumeQueueFile, offset: int
) -> Reading[int]:
    units = yield from consume_queue.read_units(offset, 1)
    if not len(units):
        return -1
    found = yield from store_timestamp_at(commit_log, int(units["physical_offset"][0]))
    return found
