"""Reads of one queue of the tier."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, distrust_tags
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.message import layout
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.flat.queue_files import FlatCommitLogFile, FlatConsumeQueueFile
from tieredstore.tier.reading import Reading, run

_log = logging.getLogger(__name__)

_I4 = struct.Struct(">i")
_I8 = struct.Struct(">q")
_UNITS_AT_ONCE = 1024


def queue_offset_at(commit_log: FlatAppendFile, offset: int) -> Reading[int]:
    """Read the queue offset of the message at a commit log offset, or -1 if no message is there."""
    found = yield from commit_log.read(offset, layout.QUEUE_OFFSET_POSITION + 8)
    if len(found) < layout.QUEUE_OFFSET_POSITION + 8:
        return -1
    value: int = _I8.unpack_from(found, layout.QUEUE_OFFSET_POSITION)[0]
    return value


def store_timestamp_at(commit_log: FlatAppendFile, offset: int) -> Reading[int]:
    """Read the store time (ms) of the message at a commit log offset, or -1 if no message is
    there."""
    found = yield from commit_log.read(offset, layout.MAX_STORE_TIMESTAMP_END)
    if len(found) < layout.MAX_STORE_TIMESTAMP_END:
        return -1
    flag: int = _I4.unpack_from(found, layout.SYS_FLAG_POSITION)[0]
    value: int = _I8.unpack_from(found, layout.store_timestamp_position(flag))[0]
    return value


def find_first_unit(
    consume_queue: FlatConsumeQueueFile, ranges: Sequence[tuple[int, int]], position: int
) -> Reading[int | None]:
    """Return the queue offset of the first message that begins at or after the commit log offset
    `position`, or None. `ranges`: as in `find_first_at_or_after`."""
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
    """Return the queue offset of the first message stored at or after `timestamp_ms`, or None.
    `ranges`: ascending ranges [first, end) of queue offsets that have messages. Store times are
    expected to rise with queue offsets, and may be equal. If a clock was set back, the result is a
    message at which the time is crossed."""
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
    """Return the smallest queue offset in [low, high] whose message was stored at or after
    `timestamp_ms`. Message `high` is known to be one of these."""
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
    """Move `low` past the segments that only have messages stored before `timestamp_ms`, according
    to the metadata. Returns the narrower range."""
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


class QueueView:
    """Reads of a queue's two files. Offsets are queue offsets, or byte offsets of the queue's own
    commit log. No method takes a lock."""

    __slots__ = ("_first_message", "commit_log", "consume_queue")

    def __init__(self, commit_log: FlatCommitLogFile, consume_queue: FlatConsumeQueueFile) -> None:
        self.commit_log = commit_log
        self.consume_queue = consume_queue
        self._first_message: tuple[int, int] | None = None

    # What there is

    @property
    def is_initialised(self) -> bool:
        return bool(self.consume_queue.segments)

    @property
    def consume_queue_min_offset(self) -> int:
        """Queue offset of the first readable message, or the commit offset without one. Messages
        may have expired from the consume queue or from the commit log. If so, this property may
        block once to read 8 bytes, and raise Unavailable or Corrupt."""
        return run(self.min_offset())

    def min_offset(self) -> Reading[int]:
        """Return `consume_queue_min_offset` as a `Reading`."""
        minimum = self.consume_queue.min_offset // UNIT_SIZE
        if self.commit_log.min_offset == 0:  # nothing has expired
            return minimum
        first = yield from self._first_message_offset()
        return max(minimum, first)

    @property
    def consume_queue_max_offset(self) -> int:
        """Queue offset after the last appended message."""
        return self.consume_queue.append_unit

    @property
    def consume_queue_commit_offset(self) -> int:
        """Queue offset after the last message that can be read."""
        return self.consume_queue.commit_offset // UNIT_SIZE

    @property
    def commit_log_min_offset(self) -> int:
        return self.commit_log.min_offset

    @property
    def commit_log_commit_offset(self) -> int:
        return self.commit_log.commit_offset

    @property
    def commit_log_max_offset(self) -> int:
        """Commit log offset after the last appended byte."""
        return self.commit_log.append_offset

    @property
    def min_store_timestamp_ms(self) -> int:
        """Begin time (ms) of the first segment with messages, from the metadata, or -1."""
        return max(self.commit_log.min_timestamp_ms, self.consume_queue.min_timestamp_ms)

    @property
    def max_store_timestamp_ms(self) -> int:
        """End time (ms) of the last segment with messages, from the metadata, or -1."""
        return self.commit_log.max_timestamp_ms

    @property
    def size_bytes(self) -> int:
        """Number of committed bytes of commit log and consume queue together."""
        return self.commit_log.size_bytes + self.consume_queue.size_bytes

    @property
    def holes(self) -> Sequence[tuple[int, int]]:
        """Ranges [first missing, next existing) of queue offsets that the tier lost or never
        received."""
        return self.consume_queue.unit_holes

    def next_valid_offset(self, offset: int) -> int:
        """Return `offset` if a message may exist there, otherwise the next queue offset with a
        message. If no message follows, returns the commit offset."""
        offset = max(offset, self.consume_queue_min_offset)
        for begin, end in self.holes:
            if begin <= offset < end:
                return end
        return min(offset, self.consume_queue_commit_offset)

    def _first_message_offset(self) -> Reading[int]:
        """Return the queue offset of the first message in the commit log, or the commit offset if
        the log is empty."""
        start, commit = self.commit_log.min_offset, self.commit_log.commit_offset
        if start == commit:
            return self.consume_queue.commit_unit
        known = self._first_message
        if known is not None and known[0] == start:
            return known[1]
        offset = yield from queue_offset_at(self.commit_log, start)
        if offset >= 0:
            self._first_message = (start, offset)
        return offset

    # Reading

    def read_units(self, offset: int, count: int) -> Reading[npt.NDArray[np.void]]:
        """Read up to `count` units (UNIT_DTYPE), starting at a queue offset. Returns fewer units at
        the end of a contiguous run, and none if there is no unit at the offset (expired, in a hole,
        not committed). Units in damaged blocks are returned without tags codes. Their other fields
        can be checked against their records."""
        damaged: list[BlocksDamaged] = []
        units = yield from self.consume_queue.read_units(offset, count, damaged)
        if damaged:
            _log.warning("%s. Its messages show which units are right", damaged[0])
            units = distrust_tags(units, offset, damaged)
        return units

    def read_commit_log(self, offset: int, length: int) -> Reading[memoryview]:
        """Read committed bytes of the commit log, starting at the byte offset `offset`. Returns
        fewer bytes at the end of the log, and none after it. Raises BlocksDamaged if bytes are in
        damaged blocks, and the errors of the segments."""
        damaged: list[BlocksDamaged] = []
        found = yield from self.commit_log.read(offset, length, damaged)
        if damaged:
            raise damaged[0]
        return found

    def read_commit_log_nowait(self, offset: int, length: int) -> memoryview | None:
        """Return the result of `read_commit_log`, or None if this needs a blocking call."""
        return self.commit_log.read_nowait(offset, length)

    def read_commit_log_as_found(self, offset: int, length: int) -> Reading[memoryview]:
        """Read like `read_commit_log`, but include unverified bytes of damaged blocks. Used for
        searches, not for serving messages."""
        found = yield from self.commit_log.read(offset, length)
        return found

    def offset_by_time(self, timestamp_ms: int, boundary: BoundaryType) -> Reading[int]:
        """Find the queue offset for a store time. LOWER: the first message at or after the time, or
        the commit offset. UPPER: the last message at or before the time, or the min offset.
        (`docs/differences.md`, D10, D27)"""
        ranges = yield from self._ranges()
        if boundary is BoundaryType.LOWER:
            found = yield from find_first_at_or_after(
                self.commit_log, self.consume_queue, ranges, timestamp_ms
            )
            return self.consume_queue_commit_offset if found is None else found
        after = yield from find_first_at_or_after(
            self.commit_log, self.consume_queue, ranges, timestamp_ms + 1
        )
        minimum = yield from self.min_offset()
        before = [
            min(end, end if after is None else after) - 1
            for begin, end in ranges
            if after is None or begin < after
        ]
        return before[-1] if before else minimum

    def store_timestamp_at(self, offset: int) -> Reading[int]:
        """Read the store time (ms) of the message at a queue offset, or -1 if no message is
        there."""
        units = yield from self.consume_queue.read_units(offset, 1)
        if not len(units):
            return -1
        found = yield from store_timestamp_at(self.commit_log, int(units["physical_offset"][0]))
        return found

    def offset_of_position(self, commit_log_offset: int) -> Reading[int | None]:
        """Return the queue offset of the first message that begins at or after `commit_log_offset`,
        or None."""
        ranges = yield from self._ranges()
        found = yield from find_first_unit(self.consume_queue, ranges, commit_log_offset)
        return found

    def _ranges(self) -> Reading[list[tuple[int, int]]]:
        minimum = yield from self.min_offset()
        begin, ranges = minimum, []
        for hole_begin, hole_end in self.holes:
            ranges.append((begin, hole_begin))
            begin = max(hole_end, minimum)
        ranges.append((begin, self.consume_queue_commit_offset))
        return [(first, behind) for first, behind in ranges if first < behind]
