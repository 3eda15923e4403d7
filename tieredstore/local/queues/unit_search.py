"""Searches the units of a consume queue for its tail, its minimum, the position of a cut, or a
store time.

Offsets are queue offsets. Physical offsets and store times grow along a queue, so searches are
binary. Blank units, if any, are at the beginning of a queue, and zeros are at its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from tieredstore.contracts.message_store import BoundaryType
from tieredstore.local.queues.interface import Units
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, UNIT_SIZE

TAIL_UNITS: Final = 4096
"""Number of remaining units at which the binary search for the tail ends. These units are read
together."""
HEAD_UNITS: Final = 200
"""Number of units that are read from the only file of a queue before a search for its tail."""

UnitReader = Callable[[int, int], Units]
"""Function that reads units. Its arguments are the offset of the first unit and the number of
units, all in one file."""


def find_first(low: int, high: int, is_right: Callable[[int], bool]) -> int:
    """Return the first number in [low, high) for which `is_right` is true, or `high`. If `is_right`
    is true for a number, it must be true for all later ones."""
    return low + bisect_left(range(low, high), True, key=is_right)


class Tail(NamedTuple):
    """End of a queue: the first offset without a unit. `first`, `last`: the first and last unit of
    the queue, if they were read."""

    offset: int
    first: np.void | None = None
    last: np.void | None = None


def find_tail(
    read: UnitReader, start: int, end: int, units_per_file: int, find_hole: Callable[[int], int]
) -> Tail:
    """Find the tail of a queue whose files contain [start, end). `find_hole`: returns the position
    of the first hole in the file that begins at the given offset."""
    if end - start == units_per_file:
        # Most queues are short, and need one read instead of a search.
        units = read(start, min(HEAD_UNITS, units_per_file))
        used = _count_used(units)
        if used < len(units):
            return Tail(start + used, units[0], units[used - 1]) if used else Tail(start)
    # Files are filled in order: the tail is in the first file whose last unit is unused.
    unused = end
    for begin in range(end - units_per_file, start - 1, -units_per_file):
        if _is_used(read, begin + units_per_file - 1):
            break
        unused = begin
    low, high = unused, min(unused + units_per_file, end)
    if high - low > TAIL_UNITS:
        # Files are sparse: a page that was never written holds no unit.
        high = min(high, low + -(-find_hole(unused) // UNIT_SIZE))
    while high - low > TAIL_UNITS:
        middle = (low + high) // 2
        if _is_used(read, middle):
            low = middle + 1
        else:
            high = middle
    if low == high:
        return Tail(low)
    units = read(low, high - low)
    used = _count_used(units)
    return Tail(low + used, last=units[used - 1] if used else None)


def _count_used(units: Units) -> int:
    """Return the number of units before the first empty unit."""
    free = (units["size"] <= 0) | (units["physical_offset"] < 0)
    first = int(free.argmax())
    return first if free[first] else len(units)


def _is_used(read: UnitReader, offset: int) -> bool:
    unit = read(offset, 1)
    return int(unit["size"][0]) > 0 and int(unit["physical_offset"][0]) >= 0


def find_cut(read: UnitReader, low: int, high: int, physical_offset: int) -> int:
    """Return the first offset in [low, high) whose message ends after `physical_offset`, or `high`.
    A missing unit (zeros of a lost write) counts as such a message."""

    def is_behind(offset: int) -> bool:
        begin, size, _ = read(offset, 1)[0].item()
        return bool(size <= 0 or (size != BLANK_SIZE_FIELD and begin + size > physical_offset))

    return find_first(low, high, is_behind)


def find_minimum(
    read: UnitReader,
    low: int,
    high: int,
    min_physical_offset: int,
    first: tuple[int, int] | None = None,
) -> int:
    """Return the offset in [low, high] of the first message at or after `min_physical_offset`.
    Blank units are not messages. `first`: physical offset and size of the unit at `low`, if it was
    read."""
    if low < high and (
        is_held(read, low, min_physical_offset)
        if first is None
        else _is_behind(*first, min_physical_offset)
    ):
        return low  # the usual case: one check instead of a search
    return find_first(low, high, lambda offset: is_held(read, offset, min_physical_offset))


def is_held(read: UnitReader, offset: int, min_physical_offset: int) -> bool:
    """Return whether the message of the unit at `offset` is still in the log.
    `min_physical_offset`: first byte of the log."""
    begin, size, _ = read(offset, 1)[0].item()
    return _is_behind(begin, size, min_physical_offset)


def _is_behind(begin: int, size: int, min_physical_offset: int) -> bool:
    return size != BLANK_SIZE_FIELD and begin >= min_physical_offset


def offset_by_time(
    store_time: Callable[[int], int],
    min_offset: int,
    max_offset: int,
    timestamp_ms: int,
    boundary: BoundaryType,
) -> int:
    """Return the queue offset for the store time `timestamp_ms`. LOWER: the first message at or
    after that time. Otherwise: the last message at or before it. `store_time`: returns the store
    time (epoch ms) of the message at an offset in [min_offset, max_offset). A deleted message has
    -1 and counts as older than all others."""
    if boundary is BoundaryType.LOWER:
        return find_first(min_offset, max_offset, lambda offset: store_time(offset) >= timestamp_ms)
    later = find_first(min_offset, max_offset, lambda offset: store_time(offset) > timestamp_ms)
    return max(later - 1, min_offset)
