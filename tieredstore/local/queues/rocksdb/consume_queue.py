"""Reads of consume queues in a database: the positions of each queue's messages, in order."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.queues.interface import Units
from tieredstore.local.queues.rocksdb import layout
from tieredstore.local.queues.rocksdb.database import QueueDatabase
from tieredstore.local.queues.unit_search import find_first
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.lite import find_parent
from tieredstore.message.names import LMQ_PREFIX

MAX_READ_UNITS: Final = 65_536
"""Maximum number of units of one read."""
_VALUE: Final = struct.Struct(">qiqq")
_UNKNOWN: Final = layout.Place(-1, 0)
_LAST: Final = b"\xff"  # in no name
LMQ: Final = LMQ_PREFIX.encode()


class LogMinimum:
    """Start of the commit log in bytes, shared by all queues of a store."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = 0


class RocksDBConsumeQueue:
    """Reads of one queue, for its owner and for other processes. Offsets are queue offsets. If the
    first message is no longer in the log, a read searches the new minimum. The owner of the store
    sets `last` and `first`. `last` is None for a queue without messages."""

    __slots__ = ("_prefix", "database", "first", "last", "log_minimum", "queue_id", "topic")

    def __init__(self, key: QueueKey, database: QueueDatabase, log_minimum: LogMinimum) -> None:
        self.topic, self.queue_id = key
        self.first = layout.Place(0, 0)
        self.last: layout.Place | None = None
        self.database = database
        self.log_minimum = log_minimum
        self._prefix = layout.pack_unit_prefix(key)

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.queue_id)

    def load(self) -> bool:
        """Read the first and the last message. Returns whether the queue exists. Raises Corrupt."""
        key = self.key
        last = self.database.get_offset(layout.pack_max_key(key))
        if last is None:
            return False
        first = self.database.get_offset(layout.pack_min_key(key))
        self.set_places(last, first)
        return self.last is not None

    def set_places(self, last: bytes, first: bytes | None) -> None:
        """Set the first and the last message from values of the offset family. Raises Corrupt."""
        place = layout.unpack_place(last, "last message of", self.key)
        self.last = place if place.offset >= 0 else None
        self.first = (
            _UNKNOWN if first is None else layout.unpack_place(first, "first message of", self.key)
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
        value = None if self.last is None else self._value(self.last.offset)
        return 0 if value is None else value[0] + value[1]

    def find_first(self, min_physical_offset: int) -> layout.Place:
        """Return the first message at or after `min_physical_offset`, or the end of the queue. A
        missing unit counts as one of an earlier message."""
        last, low = self.last, self.first.offset
        if last is None:
            return layout.Place(min_physical_offset, low)
        if last.physical_offset < min_physical_offset:
            return layout.Place(min_physical_offset, last.offset + 1)

        def is_held(offset: int) -> bool:
            value = self._value(offset)
            return value is not None and value[0] >= min_physical_offset

        offset = find_first(low, last.offset + 1, is_held)
        value = self._value(offset) if offset <= last.offset else None
        return layout.Place(min_physical_offset if value is None else value[0], offset)

    def find_end(self, physical_offset: int) -> int:
        """Return the first offset whose message ends after `physical_offset`, or max_offset."""

        def is_behind(offset: int) -> bool:
            value = self._value(offset)
            return value is not None and value[0] + value[1] > physical_offset

        return find_first(self.first.offset, self.max_offset, is_behind)

    def _value(self, offset: int) -> tuple[int, int, int, int] | None:
        """Return physical offset, size, tags code and store time of the unit of `offset`."""
        data = self.database.get_unit(self._prefix + layout.pack_number(offset))
        if data is None:
            return None
        if len(data) != layout.VALUE_SIZE:
            raise self.make_corrupt_error(offset, f"{layout.VALUE_SIZE} bytes", str(len(data)))
        physical_offset, size, tags_code, store_timestamp = _VALUE.unpack(data)
        return physical_offset, size, tags_code, store_timestamp

    def make_corrupt_error(self, offset: int, expected: str, found: str) -> Corrupt:
        """Return an error about the unit of `offset`."""
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
        value = self._value(offset) if self._has(offset) else None
        return None if value is None else value[:3]

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from `offset` on, at most MAX_READ_UNITS. Returns none for an
        offset outside [min_offset, max_offset). Raises Corrupt for a missing unit."""
        if count <= 0 or not self._has(offset):
            return np.empty(0, dtype=UNIT_DTYPE)
        count = min(count, self.max_offset - offset, MAX_READ_UNITS)
        prefix = self._prefix
        first, end = (
            prefix + layout.pack_number(offset),
            prefix + layout.pack_number(offset + count),
        )
        if count == 1:
            value = self.database.get_unit(first)
            found = [] if value is None else [value]
        else:
            found = self.database.read_values(first, end)
        if len(found) < count:
            found = self._cut_at_hole(offset, count, self.database.read_items(first, end))
        data = b"".join(found)
        if len(data) != layout.VALUE_SIZE * len(found):
            raise self.make_corrupt_error(offset, f"{layout.VALUE_SIZE} bytes each", f"{len(data)}")
        values = np.frombuffer(data, dtype=layout.VALUE_DTYPE)
        units = np.empty(len(values), dtype=UNIT_DTYPE)
        for field in UNIT_DTYPE.names or ():
            units[field] = values[field]
        return units

    def _cut_at_hole(
        self, offset: int, count: int, items: list[tuple[bytes, bytes]]
    ) -> list[bytes]:
        found: list[bytes] = []
        for number, (key, value) in enumerate(items, offset):
            if key != self._prefix + layout.pack_number(number):
                break
            found.append(value)
        if not found and self._has(offset):  # else it was deleted while it was read
            raise self.make_corrupt_error(offset, f"{count} units from here on", "none")
        return found

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:  # noqa: ARG002
        value = self._value(offset) if self._has(offset) else None
        return -1 if value is None else value[3]

    def roll_next_file(self, offset: int) -> int:
        return max(self.max_offset, offset + 1)

    def path_of(self, offset: int) -> str:  # noqa: ARG002
        return str(self.database.directory)


class QueueReads:
    """Queues of a database, opened on demand. Thread-safe."""

    def __init__(self, database: QueueDatabase) -> None:
        self._database = database
        self._log_minimum = LogMinimum()
        value = database.get_offset(layout.CHECKPOINT_KEY)
        name = f"{database.directory}: checkpoint"
        self._checkpoint = 0 if value is None else layout.unpack_number(value, name)

    def read_queue(self, key: QueueKey) -> RocksDBConsumeQueue | None:
        """Read the beginning and the end of a queue. Returns None if the queue does not exist.
        Raises Invalid for the one queue whose keys would equal those of the checkpoint."""
        fault = layout.find_checkpoint_fault(key)
        if fault is not None:
            raise Invalid(fault, topic=key.topic, queue_id=key.queue_id)
        queue = self.make_queue(key)
        return queue if queue.load() else None

    def make_queue(self, key: QueueKey) -> RocksDBConsumeQueue:
        """Return a queue without messages."""
        return RocksDBConsumeQueue(key, self._database, self._log_minimum)

    def scan_lasts(
        self, first: bytes | None = None, end: bytes | None = None
    ) -> Iterator[tuple[QueueKey, layout.Place]]:
        """Yield each queue with its last message, in the order of the database. `first`, `end`:
        limits of the keys."""
        for key, value in self._database.scan_offsets(first, end):
            if not layout.is_max_key(key) or key == layout.CHECKPOINT_KEY:
                continue
            queue = layout.unpack_offset_key(key).queue
            place = layout.unpack_place(value, "last message of", queue)
            if place.offset >= 0:
                yield queue, place

    def find_lasts_after(
        self, physical_offset: int
    ) -> tuple[Iterator[QueueKey], Iterator[QueueKey]]:
        """Find the queues whose last message begins at or after `physical_offset`. Also find the
        queue with the newest last message before it, or several queues if light queues share that
        message."""
        border, best = layout.pack_number(physical_offset), b""
        behind: list[bytes] = []
        before: list[bytes] = []
        # Numbers are big-endian, so positions compare as bytes, and only a few are unpacked.
        for key, value in self._database.scan_offsets():
            place = value[:8]
            if place < best or not layout.is_max_key(key) or key == layout.CHECKPOINT_KEY:
                continue
            if place >= border:
                behind.append(key)
                continue
            if place > best:
                best, before = place, []
            before.append(key)
        return (
            (layout.unpack_offset_key(key).queue for key in behind),
            (layout.unpack_offset_key(key).queue for key in before),
        )

    def list_queues(self) -> Iterator[QueueKey]:
        """List the queues that have or had messages, in the order of the database."""
        for key, _ in self.scan_lasts():
            yield key

    def list_topic_queues(self) -> Iterator[QueueKey]:
        """List the queues that are not light queues. Light queues are skipped without being
        read."""
        for start in self._list_starts():
            light = start + LMQ
            for first, end in ((start, light), (light + _LAST, start + _LAST)):
                yield from (key for key, _ in self.scan_lasts(first, end))

    def list_light_queues(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """List the topics that begin with `prefix`, starting after `after`, each with the end of
        its queue. Other topics are skipped without being read."""
        begin = layout.pack_topic_end(after) if after else b""
        for start in self._list_starts(begin):
            first = start + prefix.encode()
            for key, last in self.scan_lasts(max(begin, first), first + _LAST):
                yield key.topic, last.offset + 1

    def count_light_queues(self) -> Counter[str]:
        """Return the number of light queues by parent."""
        ranges = ((start + LMQ, start + LMQ + _LAST) for start in self._list_starts())
        names = (
            key[5:-9]
            for first, end in ranges
            for key, value in self._database.scan_offsets(first, end)
            if layout.is_max_key(key) and value[8:9] < b"\x80"  # else the queue has no last message
        )
        return Counter(find_parent(name.decode(errors="replace")) for name in names)

    def _list_starts(self, begin: bytes = b"") -> Iterator[bytes]:
        """Yield the common start of the keys of topics with the same length, for each length,
        beginning at a key."""
        start: bytes | None = begin or None
        while (found := next(self._database.scan_offsets(start), None)) is not None:
            yield layout.pack_start(found[0])
            start = layout.pack_next_start(found[0])

    @property
    def dispatch_from(self) -> int:
        """Position in the commit log up to which all records are in the queues."""
        return self._checkpoint

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set the beginning of the commit log. Each queue then finds its own minimum when it is
        read."""
        self._log_minimum.offset = min_physical_offset

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._database.close()
