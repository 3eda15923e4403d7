"""QueueView: what of one queue is in the tier, and how it is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, distrust_tags
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.tier.flat.commit_log_file import FlatCommitLogFile
from tieredstore.tier.flat.consume_queue_file import FlatConsumeQueueFile
from tieredstore.tier.flat.search import (
    find_first_at_or_after,
    find_first_unit,
    queue_offset_at,
    store_timestamp_at,
)
from tieredstore.tier.reading import Reading, run

_log = logging.getLogger(__name__)


class QueueView:
    """The readable side of a queue's two files. Offsets are queue offsets, or byte offsets of the
    queue's own commit log. Takes no lock."""

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
        """Queue offset of the first message that can be read; the commit offset when none can.

        The consume queue's own minimum, or the first message that the commit log still has. May
        read 8 bytes once after messages expired, blocking; raises Unavailable or Corrupt then.
        """
        return run(self.min_offset())

    def min_offset(self) -> Reading[int]:
        """Read `consume_queue_min_offset` as a reading."""
        if self.commit_log.min_offset == 0:  # nothing has expired
            return self.consume_queue.min_unit
        first = yield from self._first_message_offset()
        return max(self.consume_queue.min_unit, first)

    @property
    def consume_queue_max_offset(self) -> int:
        """Queue offset behind the last appended message."""
        return self.consume_queue.append_unit

    @property
    def consume_queue_commit_offset(self) -> int:
        """Queue offset behind the last message that can be read."""
        return self.consume_queue.commit_unit

    @property
    def commit_log_min_offset(self) -> int:
        return self.commit_log.min_offset

    @property
    def commit_log_commit_offset(self) -> int:
        return self.commit_log.commit_offset

    @property
    def commit_log_max_offset(self) -> int:
        """Behind the last appended byte."""
        return self.commit_log.append_offset

    @property
    def min_store_timestamp_ms(self) -> int:
        """-1 when nothing was written. From metadata: to the segment."""
        return max(self.commit_log.min_timestamp_ms, self.consume_queue.min_timestamp_ms)

    @property
    def max_store_timestamp_ms(self) -> int:
        """-1 when nothing was written."""
        return self.commit_log.max_timestamp_ms

    @property
    def size_bytes(self) -> int:
        """Committed bytes of commit log and consume queue."""
        return self.commit_log.size_bytes + self.consume_queue.size_bytes

    @property
    def holes(self) -> Sequence[tuple[int, int]]:
        """[first missing, next present) queue offsets that the tier never got or lost."""
        return self.consume_queue.unit_holes

    def next_valid_offset(self, offset: int) -> int:
        """Return `offset` when a message may be there; else the next queue offset that has one, or
        the commit offset behind the last one."""
        offset = max(offset, self.consume_queue_min_offset)
        for begin, end in self.holes:
            if begin <= offset < end:
                return end
        return min(offset, self.consume_queue_commit_offset)

    def _first_message_offset(self) -> Reading[int]:
        """Queue offset of the first message in the commit log; the commit offset when that is
        empty."""
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
        """Read up to `count` units (UNIT_DTYPE) from a queue offset on; fewer where a contiguous
        run ends, none where nothing is (expired, in a hole, not committed). Those in damaged blocks
        come without their tags codes: the record that a unit names tells whether the rest is
        right."""
        damaged: list[BlocksDamaged] = []
        units = yield from self.consume_queue.read_units(offset, count, damaged)
        if damaged:
            _log.warning("%s; its messages tell which units are right", damaged[0])
            units = distrust_tags(units, offset, damaged)
        return units

    def read_commit_log(self, offset: int, length: int) -> Reading[memoryview]:
        """Read the committed bytes of the commit log from a byte offset on; shorter where they end,
        empty where nothing is. Raises BlocksDamaged for bytes in damaged blocks, and what segments
        raise."""
        damaged: list[BlocksDamaged] = []
        found = yield from self.commit_log.read(offset, length, damaged)
        if damaged:
            raise damaged[0]
        return found

    def read_commit_log_nowait(self, offset: int, length: int) -> memoryview | None:
        """Return the same bytes when they are at hand without blocking, else None."""
        return self.commit_log.read_nowait(offset, length)

    def read_commit_log_as_found(self, offset: int, length: int) -> Reading[memoryview]:
        """Do `read_commit_log`, with the bytes in damaged blocks as they are: to find, not to
        serve."""
        found = yield from self.commit_log.read(offset, length)
        return found

    def offset_by_time(self, timestamp_ms: int, boundary: BoundaryType) -> Reading[int]:
        """Find the queue offset by store time.

        LOWER: first message at or after the time; the commit offset when there is none.
        UPPER: last message at or before it; the min offset when there is none. (D10, D27)
        """
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
        """Read the store time (ms) of the message at a queue offset; -1 when it is not there."""
        units = yield from self.consume_queue.read_units(offset, 1)
        if not len(units):
            return -1
        found = yield from store_timestamp_at(self.commit_log, int(units["physical_offset"][0]))
        return found

    def offset_of_position(self, commit_log_offset: int) -> Reading[int | None]:
        """Find the queue offset of the first message that begins at or behind a byte of the commit
        log; None when there is none."""
        ranges = yield from self._ranges()
        found = yield from find_first_unit(self.consume_queue, ranges, commit_log_offset)
        return found

    def _ranges(self) -> Reading[list[tuple[int, int]]]:
        """[first, behind last) queue offsets that have messages."""
        minimum = yield from self.min_offset()
        begin, ranges = minimum, []
        for hole_begin, hole_end in self.holes:
            ranges.append((begin, hole_begin))
            begin = max(hole_end, minimum)
        ranges.append((begin, self.consume_queue_commit_offset))
        return [(first, behind) for first, behind in ranges if first < behind]
