"""Records of the store times of a queue's commit log segments (docs/formats/time-records.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from tieredstore.contracts.time_records import TimesName, TimesPlace
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import gather_headers, store_timestamps
from tieredstore.message.columns.walk import walk_records
from tieredstore.message.time_records import (
    HEAD_BYTES,
    TimedRange,
    TimeRecord,
    add_ranges,
    decode_time_record,
    encode_time_record,
    make_ranges,
    pack_ranges,
    unpack_ranges,
)

LEAST_BYTES: Final = 8 << 20
"""Commit log size of a queue above which its times are recorded. Readers can read all times of a
smaller queue."""
RECORD_BYTES: Final = 24 << 20
"""Size (bytes) of a segment at which its first record of store times is written. If the segment
ends earlier, the record is written at its end."""
MOST_UNRECORDED_BYTES: Final = 64 << 20
"""Maximum number of bytes at the end of a growing segment whose store times are not recorded."""
MOST_READ_BACK_BYTES: Final = MOST_UNRECORDED_BYTES + RECORD_BYTES
"""Maximum number of bytes of a segment that a writer reads once, to get times that the previous
writer had not recorded."""


def find_next_size(recorded_bytes: int) -> int:
    """Return the segment size at which the next time record is written. This is twice the size that
    the last record covers, or that size plus a fixed step for a large segment."""
    return recorded_bytes + min(max(recorded_bytes, RECORD_BYTES), MOST_UNRECORDED_BYTES)


Read: TypeAlias = Callable[[int, int], memoryview]
"""Function that reads bytes of a commit log, starting at an offset. Returns fewer bytes at the end
of the log. Raises Unavailable, and Corrupt, for example for damaged blocks."""
MOST_STALE: Final = 16
"""Maximum number of outdated records that are kept. They are then deleted in one request."""


def find_newest(
    names: Iterable[TimesName], sizes: Mapping[int, int] | None = None
) -> dict[int, TimesName]:
    """Find the record that covers most bytes of each segment. Returns the records by base offset.
    `sizes`: sizes of the segments in bytes, by base offset. A record that covers more bytes than
    its segment has is ignored."""
    return {
        name.base_offset: name
        for name in sorted(names)
        if sizes is None or name.size_bytes <= sizes.get(name.base_offset, -1)
    }


def read_record(place: TimesPlace, path: str, name: TimesName, read: Read) -> TimeRecord | None:
    """Read a record of a queue. Returns None if it is missing or does not match the bytes of the
    commit log. Raises Unavailable."""
    data = place.read_times(path, name)
    record = None if data is None else decode_time_record(data)
    if record is None or (record.base_offset, record.size_bytes) != name:
        return None
    try:
        head = bytes(read(record.base_offset, HEAD_BYTES))
        last = bytes(read(record.ranges[-1].start, HEAD_BYTES))
    except Corrupt:
        return None
    return record if (head, last) == (record.head, record.last_head) else None


class QueueRecords:
    """Store time records of one queue, used only by its writer. All methods raise Unavailable."""

    __slots__ = ("_names", "_path", "_place")

    def __init__(self, place: TimesPlace, path: str) -> None:
        self._place = place
        self._path = path
        self._names: set[TimesName] | None = None

    def find(self, base_offset: int, read: Read) -> TimeRecord | None:
        """Return the record of a segment. Records that do not match its bytes are deleted."""
        name = find_newest(self._load()).get(base_offset)
        if name is None:
            return None
        record = read_record(self._place, self._path, name, read)
        if record is None:
            self.forget(base_offset)
        return record

    def forget(self, base_offset: int) -> None:
        """Delete all time records of a segment, because they do not match its bytes."""
        self._delete([name for name in self._load() if name.base_offset == base_offset])

    def put(self, record: TimeRecord) -> None:
        """Write a record. Outdated records remain until `drop_stale`."""
        names = self._load()
        name = TimesName(record.base_offset, record.size_bytes)
        if name in names:
            self._delete([name])
        names.add(name)  # even if the reply is lost
        self._place.write_times(self._path, name, encode_time_record(record))

    def drop_stale(self, bases: Iterable[int], most: int = MOST_STALE) -> None:
        """Delete all outdated records if there are more than `most`. These include records of
        deleted segments. `bases`: base offsets of the existing segments."""
        names = self._load()
        newest = find_newest(names)
        stale = names - {newest[base] for base in bases if base in newest}
        if len(stale) > most:
            self._delete(sorted(stale))

    def delete_all(self) -> None:
        """Delete all records of the queue."""
        self._delete(sorted(self._load()))

    @property
    def is_listed(self) -> bool:
        """Whether the names of the records in the tier were listed."""
        return self._names is not None

    def _load(self) -> set[TimesName]:
        if self._names is None:
            self._names = set(self._place.list_times(self._path))
        return self._names

    def _delete(self, names: list[TimesName]) -> None:
        if names:
            self._place.delete_times(self._path, names)
            assert self._names is not None
            self._names.difference_update(names)


_PIECE_BYTES: Final = 4 << 20


def read_ranges(start: int, end: int, read: Read) -> list[TimedRange]:
    """Read the times of the messages in [start, end). Stops at the first message that is damaged or
    does not follow the previous one. Raises Unavailable."""
    ranges: list[TimedRange] = []
    length = _PIECE_BYTES
    while start < end:
        try:
            data = read(start, min(length, end - start))
        except Corrupt:
            break
        positions, behind, _ = walk_records(data)
        if not len(positions):
            if length >= end - start or len(data) < length:
                break
            length *= 4  # a message that is larger
            continue
        offsets = gather_headers(data, positions)["queue_offset"].astype(np.int64)
        first = int(offsets[0])
        if not (offsets == np.arange(first, first + len(offsets))).all():
            break
        ends = np.append(positions[1:], behind)
        times = store_timestamps(data, positions)
        add_ranges(ranges, make_ranges(positions + start, ends + start, first, times))
        start, length = start + behind, _PIECE_BYTES
    return ranges


_KEPT: Final = 4
"""Number of the latest ranges that are kept as objects. Earlier ranges are packed into bytes."""


class SegmentTimes:
    """Store times of one segment by ranges of messages, and the message heads that identify the
    segment. `add` gets the messages that this writer commits, and the first `record` also reads the
    messages before them. `has_ended`: whether the segment gets no more commits."""

    __slots__ = (
        "_begin",
        "_head",
        "_last_head",
        "_packed",
        "_ranges",
        "_recorded",
        "base",
        "has_ended",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.has_ended = False
        self._begin = -1
        self._head = b""
        self._last_head = b""
        self._packed = bytearray()
        self._ranges: list[TimedRange] = []
        self._recorded = 0

    def add(self, new: Sequence[TimedRange], heads: Mapping[int, bytes]) -> None:
        """Add ranges of newly committed messages. `heads`: first bytes of the first message in each
        range, by position in the commit log."""
        add_ranges(self._ranges, new)
        if self._begin < 0:
            self._begin = self._ranges[0].start
            self._head = heads.get(self.base, b"")
        self._last_head = heads.get(self._ranges[-1].start, self._last_head)
        if len(self._ranges) > _KEPT:
            self._packed += pack_ranges(self._ranges[:-1])
            del self._ranges[:-1]

    @property
    def end(self) -> int:
        """Position in the commit log after the last known message."""
        return self._ranges[-1].end if self._ranges else self.base

    @property
    def size_bytes(self) -> int:
        """Size of the segment up to the last known message."""
        return self.end - self.base

    @property
    def is_recorded(self) -> bool:
        """Whether the tier has a record that covers all known messages."""
        return self._recorded >= self.size_bytes

    @property
    def is_due(self) -> bool:
        """Whether a record of the segment is due."""
        if self.has_ended:
            return not self.is_recorded
        if self._recorded:
            return self.size_bytes >= find_next_size(self._recorded)
        # It is not known yet how much a previous writer recorded.
        before = self._begin - self.base
        return self.size_bytes >= RECORD_BYTES + (before if before >= RECORD_BYTES else 0)

    def record(self, records: QueueRecords, read: Read) -> bool:
        """Write a record of the known times, unless earlier messages of the segment cannot be read.
        Returns whether a record was written. Raises Unavailable."""
        if not self._ranges:
            return False
        old = None
        if not self._head:
            old = self._complete(records, read)
        elif not self._recorded:  # this writer created the segment, so there are no other records
            records.forget(self.base)
        self._recorded = self.size_bytes
        if not len(self._head) == len(self._last_head) == HEAD_BYTES:
            return False
        ranges = (*unpack_ranges(self._packed), *self._ranges)
        record = TimeRecord(self.base, self.end, self._head, self._last_head, ranges)
        if record != old:
            self._recorded = 0
            records.put(record)
            self._recorded = self.size_bytes
        return record != old

    def _complete(self, records: QueueRecords, read: Read) -> TimeRecord | None:
        """Add the ranges of earlier messages of the segment, from its last record and from the
        heads of the messages after it. Returns that record."""
        old = records.find(self.base, read)
        known = list(old.ranges) if old is not None else []
        new = [*unpack_ranges(self._packed), *self._ranges]
        behind = known[-1].end if known else self.base
        if behind < new[0].start <= behind + MOST_READ_BACK_BYTES:
            known += read_ranges(behind, new[0].start, read)
        joined: list[TimedRange] = []
        add_ranges(joined, sorted([*known, *new]))
        last_head = self._last_head if joined[-1].start == new[-1].start else b""
        try:
            head = bytes(read(self.base, HEAD_BYTES))
            last_head = last_head or bytes(read(joined[-1].start, HEAD_BYTES))
        except Corrupt:
            return old
        self._head, self._last_head = head, last_head
        self._packed = bytearray(pack_ranges(joined[:-1]))
        self._ranges = joined[-1:]
        return old


def record_times(
    place: TimesPlace, path: str, bases: Sequence[int], new: Sequence[TimedRange], read: Read
) -> int:
    """Record the times of a queue's committed messages, and delete outdated records. `bases`: base
    offsets of the queue's commit log segments, ascending. `new`: the new messages, ascending.
    Returns the number of written records. Raises Unavailable."""
    records = QueueRecords(place, path)
    made = 0
    for base, behind in zip(bases, [*bases[1:], 1 << 63], strict=True):
        within = [one for one in new if base <= one.start and one.end <= behind]
        if within:
            times = SegmentTimes(base)
            times.add(within, {})
            made += times.record(records, read)
    records.drop_stale(bases, most=0)
    return made
