"""Searches in the units of a consume queue in files: its tail, its minimum, where to cut it.

Offsets are queue offsets. Physical offsets grow along a queue, so binary searches find them; blank
units, if any, are at its beginning, zeros at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from tieredstore.local.queues.interface import Units
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, UNIT_SIZE

TAIL_UNITS: Final = 4096
"""The search for the tail halves down to this many units and then reads them at once."""
HEAD_UNITS: Final = 200
"""Read of the only file of a queue before a search for its tail."""

UnitReader = Callable[[int, int], Units]
"""Reads as many units from an offset on, all of one file."""


class Tail(NamedTuple):
    """Where a queue ends: the first offset without a unit. first, last: the queue's first unit, and
    the one in front of its end, where they were read already."""

    offset: int
    first: np.void | None = None
    last: np.void | None = None


def find_tail(
    read: UnitReader,
    start: int,
    end: int,
    units_per_file: int,
    find_hole: Callable[[int], int],
) -> Tail:
    """Find the tail of a queue whose files hold [start, end).

    find_hole: returns, of the file that begins at an offset, the byte where its first hole begins.
    """
    if end - start == units_per_file:
        # A short queue, as most are: one read instead of a search.
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
        # Files are sparse: what no page was written for holds no unit.
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
    """Count the units in front of the first that is none."""
    free = (units["size"] <= 0) | (units["physical_offset"] < 0)
    first = int(free.argmax())
    return first if free[first] else len(units)


def _is_used(read: UnitReader, offset: int) -> bool:
    unit = read(offset, 1)
    return int(unit["size"][0]) > 0 and int(unit["physical_offset"][0]) >= 0


def find_cut(read: UnitReader, low: int, high: int, physical_offset: int) -> int:
    """Find the offset in [low, high] from which on no message is wholly before a commit log offset;
    a unit that is none (zeros of a lost write) counts as behind it."""
    while low < high:
        middle = (low + high) // 2
        begin, size, _ = read(middle, 1)[0].item()
        if size <= 0 or (size != BLANK_SIZE_FIELD and begin + size > physical_offset):
            high = middle
        else:
            low = middle + 1
    return low


def find_minimum(
    read: UnitReader,
    low: int,
    high: int,
    min_physical_offset: int,
    first: tuple[int, int] | None = None,
) -> int:
    """Find the offset in [low, high] of the first message that is not before a commit log offset;
    blank units are no messages. first: physical offset and size of the unit at `low`, where it was
    read already."""
    if low < high and (
        is_held(read, low, min_physical_offset)
        if first is None
        else _is_behind(*first, min_physical_offset)
    ):
        return low  # as mostly: one look instead of a search
    while low < high:
        middle = (low + high) // 2
        if is_held(read, middle, min_physical_offset):
            high = middle
        else:
            low = middle + 1
    return low


def is_held(read: UnitReader, offset: int, min_physical_offset: int) -> bool:
    """Tell whether the unit at an offset leads to what a log that begins there still holds."""
    begin, size, _ = read(offset, 1)[0].item()
    return _is_behind(begin, size, min_physical_offset)


def _is_behind(begin: int, size: int, min_physical_offset: int) -> bool:
    return size != BLANK_SIZE_FIELD and begin >= min_physical_offset
