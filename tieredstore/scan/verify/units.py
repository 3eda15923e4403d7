"""Reads of consume queue units for a verification, and units without a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.extents import QueueReader, Units
from tieredstore.scan.findings import OnFinding, damage
from tieredstore.scan.read.batch import Bools, UnitRun
from tieredstore.scan.read.batches import UNITS_PER_READ, make_unusable_finding, runs_of_rows
from tieredstore.scan.read.damaged_blocks import tell_blocks

Lose: TypeAlias = Callable[[int, int], None]
"""Function called with the first and last queue offset of messages that cannot be checked."""


def read_blocks(
    reader: QueueReader, start: int, end: int, tell: OnFinding, lose: Lose
) -> Iterator[tuple[int, Units]]:
    """Read units [start, end) in blocks, each with its first queue offset. `lose` is called with
    the first and last queue offset of unreadable units."""
    for low, count in blocks(start, end):
        try:
            damaged: list[BlocksDamaged] = []
            units = reader.read_units(low, count, damaged)
            for error in damaged:
                tell_blocks(error, tell, queue_offset=low)
            yield low, units
        except Corrupt:  # a segment became shorter: the other ones can be read
            yield from _read_apart(reader, low, low + count, tell, lose)


def _read_apart(
    reader: QueueReader, start: int, end: int, tell: OnFinding, lose: Lose
) -> Iterator[tuple[int, Units]]:
    for extent in reader.queue.consume_queue:
        low = max(start, -(-extent.base_offset // UNIT_SIZE))
        high = min(end, extent.end_offset // UNIT_SIZE)
        if low >= high:
            continue
        try:
            yield low, reader.read_units(low, high - low)
        except Corrupt as error:
            lose(low, high - 1)
            text = f"units {low} to {high - 1} cannot be read: {error}"
            tell(
                damage("units-missing", text, extent.id, low * UNIT_SIZE - extent.base_offset, low)
            )


class BadUnits:
    """Collects units that refer to no whole record. Consecutive ones become one finding."""

    def __init__(self, reader: QueueReader, tell: OnFinding, lose: Lose) -> None:
        self._reader = reader
        self._tell = tell
        self._lose = lose
        self._first: tuple[int, int, int] | None = None
        self.last: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are bad units that are not reported yet."""
        return self._first is not None

    def begin_before(self, last: int) -> None:
        """Record that the units before this check, up to `last`, are bad too. Another check reports
        them."""
        self.last = last

    def add(self, units: UnitRun, usable: Bools) -> None:
        for group in runs_of_rows(np.flatnonzero(~usable)):
            first, last = int(group[0]), int(group[-1])
            number = int(units.queue_offsets[first])
            if self.last != number - 1:
                self.tell()
                self._first = number, int(units.offsets[first]), int(units.sizes[first])
            self.last = int(units.queue_offsets[last])

    def tell(self) -> None:
        if self._first is not None and self.last is not None:
            number, offset, size = self._first
            self._tell(make_unusable_finding(self._reader, offset, size, number, self.last))
            self._lose(number, self.last)
        self._first = None


def blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide queue offsets [start, end) into reads. Yield the first queue offset and number of
    units of each."""
    for low in range(start, end, UNITS_PER_READ):
        yield low, min(UNITS_PER_READ, end - low)
