"""One consume queue in the database: where the messages of a queue are, in order."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.queues.interface import Units
from tieredstore.local.queues.rocksdb.database import QueueDatabase
from tieredstore.local.queues.rocksdb.layout import (
    VALUE_DTYPE,
    VALUE_SIZE,
    Place,
    pack_max_key,
    pack_min_key,
    pack_number,
    pack_unit_prefix,
    unpack_place,
)
from tieredstore.message.consume_queue import UNIT_DTYPE

MAX_READ_UNITS: Final = 65_536
"""Units of one read at most."""
_VALUE: Final = struct.Struct(">qiqq")
_UNKNOWN: Final = Place(-1, 0)


class LogMinimum:
    """Where the commit log begins, shared by the queues of a store. offset: bytes."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = 0


class RocksDBConsumeQueue:
    """A queue's reading half, for its owner and for others. Offsets are queue offsets.

    Its minimum is looked for when somebody asks, once the log has lost the message that was the
    first one. `last` and `first` are the owner's to set; None for a queue without messages.
    """

    __slots__ = ("_prefix", "database", "first", "last", "log_minimum", "queue_id", "topic")

    def __init__(self, key: QueueKey, database: QueueDatabase, log_minimum: LogMinimum) -> None:
        self.topic, self.queue_id = key
        self.first = Place(0, 0)
        self.last: Place | None = None
        self.database = database
        self.log_minimum = log_minimum
        self._prefix = pack_unit_prefix(key)

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)

    def load(self) -> bool:
        """Read the first and the last message; tells whether there is such a queue. Raises
        Corrupt."""
        key = self.key
        last = self.database.get_offset(pack_max_key(key))
        if last is None:
            return False
        first = self.database.get_offset(pack_min_key(key))
        self.set_places(last, first)
        return self.last is not None

    def set_places(self, last: bytes, first: bytes | None) -> None:
        """Take the values of the database's offset family. Raises Corrupt."""
        place = unpack_place(last, "last message of", self.key)
        self.last = place if place.offset >= 0 else None
        self.first = (
            _UNKNOWN if first is None else unpack_place(first, "first message of", self.key)
        )

    @property
    def max_offset(self) -> int:
        last = self.last
        return 0 if last is None else last.offset + 1

    @property
    def min_offset(self) -> int:
        minimum = self.log_minimum.offset
        if self.first.physical_offset < minimum:
            self.first = self.find_first(minimum)
        return self.first.offset

    @property
    def max_physical_offset(self) -> int:
        """End of the last message that was put in the queue; 0 when unknown."""
        value = None if self.last is None else self._value(self.last.offset)
        return 0 if value is None else value[0] + value[1]

    def find_first(self, min_physical_offset: int) -> Place:
        """Find the first message from a byte of the commit log on; behind the last one where there
        is none. Units that are not there any more count as earlier."""
        last, low = self.last, self.first.offset
        if last is None:
            return Place(min_physical_offset, low)
        if last.physical_offset < min_physical_offset:
            return Place(min_physical_offset, last.offset + 1)
        high, found = last.offset + 1, min_physical_offset
        while low < high:
            middle = (low + high) // 2
            value = self._value(middle)
            if value is None or value[0] < min_physical_offset:
                low = middle + 1
            else:
                high, found = middle, value[0]
        return Place(found, low)

    def find_end(self, physical_offset: int) -> int:
        """Find the first offset whose message is not wholly before a byte of the commit log;
        max_offset where there is none."""
        low, high = self.first.offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            value = self._value(middle)
            if value is None or value[0] + value[1] <= physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _value(self, offset: int) -> tuple[int, int, int, int] | None:
        """Physical offset, size, tags code and store time of the unit of an offset."""
        data = self.database.get_unit(self._prefix + pack_number(offset))
        if data is None:
            return None
        if len(data) != VALUE_SIZE:
            raise self.make_corrupt_error(offset, f"{VALUE_SIZE} bytes", str(len(data)))
        physical_offset, size, tags_code, store_timestamp = _VALUE.unpack(data)
        return physical_offset, size, tags_code, store_timestamp

    def make_corrupt_error(self, offset: int, expected: str, found: str) -> Corrupt:
        """Make the error about the unit of an offset."""
        return Corrupt(
            f"{self.database.directory}: unit {offset} of {self.topic}/{self.queue_id}: expected "
            f"{expected}, found {found}",
            topic=self.topic,
            queue_id=self.queue_id,
            offset=offset,
            path=str(self.database.directory),
        )

    def _has(self, offset: int) -> bool:
        return self.min_offset <= offset < self.max_offset

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Read (physical offset, size, tags code) of one message; None outside the queue."""
        value = self._value(offset) if self._has(offset) else None
        return None if value is None else value[:3]

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from an offset on, MAX_READ_UNITS at most; none outside
        [min_offset, max_offset). Raises Corrupt where one is missing."""
        if count <= 0 or not self._has(offset):
            return np.empty(0, dtype=UNIT_DTYPE)
        count = min(count, self.max_offset - offset, MAX_READ_UNITS)
        prefix = self._prefix
        first, end = prefix + pack_number(offset), prefix + pack_number(offset + count)
        if count == 1:
            value = self.database.get_unit(first)
            found = [] if value is None else [value]
        else:
            found = self.database.read_values(first, end)
        if len(found) < count:
            found = self._cut_at_hole(offset, count, self.database.read_items(first, end))
        data = b"".join(found)
        if len(data) != VALUE_SIZE * len(found):
            raise self.make_corrupt_error(offset, f"{VALUE_SIZE} bytes each", f"{len(data)}")
        values = np.frombuffer(data, dtype=VALUE_DTYPE)
        units = np.empty(len(values), dtype=UNIT_DTYPE)
        for field in UNIT_DTYPE.names or ():
            units[field] = values[field]
        return units

    def _cut_at_hole(
        self, offset: int, count: int, items: list[tuple[bytes, bytes]]
    ) -> list[bytes]:
        found: list[bytes] = []
        for number, (key, value) in enumerate(items, offset):
            if key != self._prefix + pack_number(number):
                break
            found.append(value)
        if not found and self._has(offset):  # else it was deleted while it was read
            raise self.make_corrupt_error(offset, f"{count} units from here on", "none")
        return found

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:  # noqa: ARG002
        """Return the store time (epoch ms) in the unit of one message; -1 outside the queue."""
        value = self._value(offset) if self._has(offset) else None
        return -1 if value is None else value[3]

    def roll_next_file(self, offset: int) -> int:
        """Return the end of the queue, or what is behind the offset: there are no files."""
        return max(self.max_offset, offset + 1)

    def path_of(self, offset: int) -> str:  # noqa: ARG002
        """Return the folder of the database."""
        return str(self.database.directory)
