"""Consume queues rebuilt from the records of a commit log.

They are used if the store's own queues are in a RocksDB database that another process has open, or
that was not closed cleanly. The owner of the database keeps units in memory for up to an hour, and
the files do not show which units have lost their records. So the log is read up to the end that is
known to be on disk, and every record is checked by its CRC. A unit takes 28 bytes in memory, or in
a file if there are many.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.record_check import find_topic_of_whole
from tieredstore.local.queues.interface import HeldBack, QueueUnits, Units
from tieredstore.local.queues.missing.spilled_rows import Spill, SpilledRows
from tieredstore.local.queues.record_units import find_units
from tieredstore.local.queues.topic_deletion import TopicDeletion
from tieredstore.local.queues.unit_search import find_first
from tieredstore.message.columns.records import (
    RecordColumns,
    check_bodies,
    check_property_crcs,
    check_text_ends,
    record_columns,
)
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.skipped_records import SkippedRecords

PIECE_BYTES: Final = 4 << 20
"""Size of one read of the log, unless a record is larger."""
ROW_DTYPE: Final = np.dtype([("unit", UNIT_DTYPE), ("store_timestamp", ">i8")])
_NO_LIMIT_MS: Final = 2**63 - 1
_log = logging.getLogger(__name__)


class RebuiltQueue:
    """`ConsumeQueueReader` over units that were built from the log."""

    def __init__(self, key: QueueKey, log: CommitLogReader, place: str, spill: Spill) -> None:
        self.topic, self.queue_id = key
        self._log = log
        self._place = place
        self._rows = SpilledRows(spill, ROW_DTYPE)
        self._base = 0
        self._expired = 0
        self._checked_min = -1

    def add(self, group: QueueUnits) -> None:
        """Append units. If their offsets do not continue the queue, its topic was deleted and
        recreated, and they replace all earlier units."""
        if group.offset != self._base + len(self._rows):
            if len(self._rows):
                _log.warning(
                    "%s: %s/%d continues at offset %d after %d. Earlier messages are left out",
                    self._place,
                    self.topic,
                    self.queue_id,
                    group.offset,
                    self.max_offset - 1,
                )
            self._rows.clear()
            self._base, self._expired = group.offset, 0
            self._checked_min = -1
        rows = np.empty(len(group.units), ROW_DTYPE)
        rows["unit"] = group.units
        rows["store_timestamp"] = group.store_timestamps_ms
        self._rows.extend(rows)

    def drop_before(self, offset: int) -> bool:
        """Drop the units before `offset`. Returns whether any units are left."""
        self._expired = min(max(self._expired, offset - self._base), len(self._rows))
        return self._expired < len(self._rows)

    @property
    def max_offset(self) -> int:
        return self._base + len(self._rows)

    @property
    def min_offset(self) -> int:
        minimum = self._log.min_offset
        if minimum != self._checked_min:
            self._expired = find_first(
                self._expired,
                len(self._rows),
                lambda row: int(self._rows[row]["unit"]["physical_offset"]) >= minimum,
            )
            self._checked_min = minimum
        return self._base + self._expired

    def read_units(self, offset: int, count: int) -> Units:
        if count <= 0 or not self.min_offset <= offset < self.max_offset:
            return np.empty(0, dtype=UNIT_DTYPE)
        first = offset - self._base
        units: Units = self._rows.read(first, min(first + count, len(self._rows)))["unit"].copy()
        return units

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:  # noqa: ARG002
        if not self.min_offset <= offset < self.max_offset:
            return -1
        return int(self._rows[offset - self._base]["store_timestamp"])

    def roll_next_file(self, offset: int) -> int:
        return max(self.max_offset, offset + 1)

    def path_of(self, offset: int) -> str:  # noqa: ARG002
        return self._place


class RebuiltQueues:
    """All queues of a commit log, up to the end of the bytes read so far. Thread-safe.

    `place`: the log's folder, for error messages.
    `delays_ms`: delays of the delay levels.
    `start_offset`: position of a message in the log, before which nothing is read.
    `scratch`: folder for units that exceed memory, as in `Spill`.
    `deleted_ends`: ends of deleted queues, as recorded in the log.
    """

    def __init__(
        self,
        log: CommitLogReader,
        place: str,
        delays_ms: tuple[int, ...],
        *,
        start_offset: int = 0,
        scratch: Path | None = None,
    ) -> None:
        self._scratch = scratch
        self._spill = Spill(scratch)
        self.deleted_ends: dict[QueueKey, int] = {}
        self._skipped = SkippedRecords()
        self._start = start_offset
        self._log = log
        self._place = place
        self._delays_ms = delays_ms
        self._queues: dict[QueueKey, RebuiltQueue] = {}
        self._lock = threading.Lock()
        self._position = -1
        self._last: tuple[int, bytes] | None = None
        self._limit_ms = -1

    @property
    def position(self) -> int:
        """End of the log bytes read so far, or -1 before the first read."""
        return self._position

    def list_queues(self) -> Iterable[QueueKey]:
        return list(self._queues)

    def open_queue(self, key: QueueKey) -> RebuiltQueue | None:
        return self._queues.get(key)

    def close(self) -> None:
        self._queues.clear()
        self._position = self._limit_ms = -1

    def follow(self, limit_ms: int) -> None:
        """Read the log from the last position up to the first record that is incomplete or has a
        store time after `limit_ms` (epoch ms). Raises Unavailable."""
        with self._lock:
            if limit_ms == self._limit_ms:
                return
            went_back = limit_ms < self._limit_ms
            self._limit_ms = -1
            if went_back or self._position < self._log.min_offset or not self._is_last_the_same():
                # Nothing was read yet, or it is another log, which was truncated and continued
                # differently.
                self._queues.clear()
                self._spill = Spill(self._scratch)
                self.deleted_ends.clear()
                self._position, self._last = max(self._log.min_offset, self._start), None
            while self._position < self._log.readable_offset:
                if not self._read_piece(limit_ms):
                    break
            self._limit_ms = limit_ms

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Return the messages of each queue that `follow` has not read, by reading the rest of the
        log. `is_taken`: returns whether to include the queues of a topic. Raises Unavailable."""
        rest = RebuiltQueues(
            self._log,
            self._place,
            self._delays_ms,
            start_offset=max(self._position, self._start),
            scratch=self._scratch,
        )
        rest.follow(_NO_LIMIT_MS)
        chosen = {topic for topic in {key.topic for key in rest._queues} if is_taken(topic)}
        return {
            key: HeldBack(
                queue.max_offset - queue.min_offset,
                queue.store_time(queue.min_offset, lambda _: -1),
            )
            for key, queue in rest._queues.items()
            if key.topic in chosen
        }

    def _is_last_the_same(self) -> bool:
        if self._last is None:
            return True
        position, record = self._last
        found = self._log.get(position, len(record))
        return found is not None and found == record

    def _read_piece(self, limit_ms: int) -> bool:
        position, size = self._position, self._log.file_size
        rest = min(size - position % size, self._log.readable_offset - position)
        length = min(PIECE_BYTES, rest)
        while True:
            piece = self._log.get(position, length)
            if piece is None:
                return False
            walk = walk_records(piece)
            if len(walk.positions) or walk.stop is not Stop.CUT or length == rest:
                break
            length = min(2 * length, rest)
        if len(walk.positions):
            count = self._count_good(piece, walk.positions, limit_ms)
            if count:
                self._take(piece, record_columns(piece, walk.positions[:count]))
            if count < len(walk.positions):
                return False
            position += walk.next_position
            self._position = position
        if walk.stop is Stop.BLANK:
            self._position = position - position % size + size
            return True
        return walk.stop in (Stop.END, Stop.CUT) and len(walk.positions) > 0

    def _count_good(
        self, piece: memoryview, positions: npt.NDArray[np.int64], limit_ms: int
    ) -> int:
        """Return how many of the first records are complete and have a store time within the
        limit."""
        try:
            records = record_columns(piece, positions)
        except Corrupt:
            # One of them is not a record: check them one by one from the first.
            for number in range(len(positions)):
                if len(positions) == 1 or not self._count_good(
                    piece, positions[number : number + 1], limit_ms
                ):
                    return number
            return len(positions)
        good = records.physical_offsets == records.positions + self._position
        good &= records.store_timestamps <= limit_ms
        stop = len(good) if good.all() else int(good.argmin())
        records = records.take(slice(0, stop))
        good = check_bodies(piece, records) & check_text_ends(piece, records)
        good &= check_property_crcs(piece, records)
        for row in np.flatnonzero(~good).tolist():
            start = int(records.positions[row])
            record = piece[start : start + int(records.sizes[row])]
            offset = self._position + start
            topic = find_topic_of_whole(self._log, record, offset)
            if topic is None:
                return row
            self._skipped.note(topic, offset, "it looks damaged at its end")
        return len(good)

    def _take(self, piece: memoryview, records: RecordColumns) -> None:
        for found in find_units(piece, records, self._delays_ms):
            if isinstance(found, QueueUnits):
                self._queue(found.key).add(found)
            else:
                deletion = TopicDeletion.parse(found, self._skipped)
                if deletion is not None:
                    self._drop(deletion)
        start, end = int(records.positions[-1]), len(piece)
        end = start + int(records.sizes[-1])
        self._last = self._position + start, bytes(piece[start:end])
        self._position += end

    def _drop(self, deletion: TopicDeletion) -> None:
        for queue_id, end_offset in deletion.end_offsets.items():
            key = QueueKey(deletion.topic, queue_id)
            self.deleted_ends[key] = end_offset
            queue = self._queues.get(key)
            if queue is not None and not queue.drop_before(end_offset):
                del self._queues[key]

    def _queue(self, key: QueueKey) -> RebuiltQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = RebuiltQueue(key, self._log, self._place, self._spill)
        return queue
