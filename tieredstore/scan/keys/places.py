"""Conversion of the commit log positions of index items to queue offsets."""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from tieredstore.errors import Corrupt
from tieredstore.message.layout import MIN_RECORD_SIZE, is_head_of_message
from tieredstore.message.record import StoredMessage
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.batch import Bools, Int64s
from tieredstore.scan.read.batches import UNITS_PER_READ, find_usable_units

_UNITS_A_HIT = 512
"""Number of units whose read costs about as much as the read of the head of one message."""


class Places(NamedTuple):
    """Messages of one queue, as arrays: queue offsets, and log bytes [start, end)."""

    numbers: Int64s
    starts: Int64s
    ends: Int64s

    def take(self, rows: Bools | Int64s) -> Places:
        return Places(self.numbers[rows], self.starts[rows], self.ends[rows])


def find_places(reader: QueueReader, low: int, high: int, starts: Int64s, ends: Int64s) -> Places:
    """Return the messages in [low, high) that begin at the given log positions, which are distinct
    and ascending. Positions without a unit are skipped, because an index item may be older than the
    messages. Raises Corrupt for missing units, Unavailable."""
    numbers = np.full(len(starts), -1, dtype=np.int64)
    if len(starts) * _UNITS_A_HIT >= high - low:
        _match_units(reader, low, high, starts, numbers)
    for row in np.flatnonzero(numbers < 0).tolist():
        numbers[row] = _find_number(reader, low, high, int(starts[row]), int(ends[row]))
    kept = np.flatnonzero(numbers >= 0)
    kept = kept[np.argsort(numbers[kept], kind="stable")]
    return Places(numbers, starts, ends).take(kept)


def _match_units(reader: QueueReader, low: int, high: int, starts: Int64s, numbers: Int64s) -> None:
    """Read all units of [low, high), and store the queue offset of each position of `starts` in
    `numbers`."""
    for first in range(low, high, UNITS_PER_READ):
        count = min(UNITS_PER_READ, high - first)
        units, _ = find_usable_units(reader, reader.read_units(first, count), first)
        rows = np.searchsorted(starts, units.offsets)
        is_named = starts[np.minimum(rows, len(starts) - 1)] == units.offsets
        numbers[rows[is_named]] = units.queue_offsets[is_named]


def _find_number(reader: QueueReader, low: int, high: int, start: int, end: int) -> int:
    """Return the queue offset of one message from its head or, if that is damaged, from its unit.
    Return -1 if there is no such message."""
    if start < reader.queue.commit_log_min_offset:
        return -1  # expired
    try:
        head = reader.commit_log.read(start, MIN_RECORD_SIZE)
        message = StoredMessage(head, 0, end - start)
        if is_head_of_message(head, end - start) and message.physical_offset == start:
            return message.queue_offset if low <= message.queue_offset < high else -1
    except Corrupt:
        pass  # reported when the message is read
    number = bisect.bisect_left(
        range(high), start, low, key=lambda number: _unit_start(reader, number)
    )
    return number if number < high and _unit_start(reader, number) == start else -1


def _unit_start(reader: QueueReader, number: int) -> int:
    units, _ = find_usable_units(reader, reader.read_units(number, 1), number)
    return int(units.offsets[0])
