"""Consume queues made in memory from the records of a commit log, for a store whose own queues
cannot be read: a RocksDB database that another process has open, or that was left unclean.

The database's owner keeps units in memory for up to an hour, and nothing tells which of those on
disk lead to records that are. So the log is read, record by record with its CRC, as far as it is
known to be on disk. A unit takes 28 bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.queues.interface import HeldBack, QueueUnits, Units
from tieredstore.local.queues.record_units import find_record_units
from tieredstore.message.columns.property_crcs import check_property_crcs
from tieredstore.message.columns.records import (
    RecordColumns,
    Stop,
    check_bodies,
    check_text_ends,
    properties_of,
    record_columns,
    topics,
    walk_records,
)
from tieredstore.message.consume_queue import UNIT_DTYPE, make_units
from tieredstore.message.hashes import tags_code
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC
from tieredstore.message.properties import find_text
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import INNER_BATCH, TRANSACTION_MASK
from tieredstore.message.topic_deletion import TopicDeletion

PIECE_BYTES: Final = 4 << 20
"""How much of the log is read at once; more for a record that is larger."""
_ROW_DTYPE: Final = np.dtype([("unit", UNIT_DTYPE), ("store_timestamp", ">i8")])
_NO_LIMIT_MS: Final = 2**63 - 1
_FIRST_ROWS: Final = 16
_SPECIAL_TOPICS: Final = frozenset({SCHEDULE_TOPIC, DELETION_TOPIC})
_log = logging.getLogger(__name__)


class RebuiltQueue:
    """A `ConsumeQueueReader` over units in memory."""

    def __init__(self, key: QueueKey, log: CommitLogReader, place: str) -> None:
        self.topic, self.queue_id = key
        self._log = log
        self._place = place
        self._rows = np.empty(_FIRST_ROWS, dtype=_ROW_DTYPE)
        self._base = 0
        self._count = 0
        self._expired = 0
        self._checked_min = -1

    def add(self, group: QueueUnits) -> None:
        """Put units behind the last one. Others than the next ones begin the queue anew: its topic
        was deleted and made again."""
        if group.offset != self._base + self._count:
            if self._count:
                _log.warning(
                    "%s: %s/%d goes on at offset %d behind %d: what is before it is left out",
                    self._place,
                    self.topic,
                    self.queue_id,
                    group.offset,
                    self.max_offset - 1,
                )
            self._base, self._count, self._expired = group.offset, 0, 0
            self._checked_min = -1
        count = self._count + len(group.units)
        if count > len(self._rows):
            rows = np.empty(max(count, 2 * len(self._rows)), dtype=_ROW_DTYPE)
            rows[: self._count] = self._rows[: self._count]
            self._rows = rows
        self._rows["unit"][self._count : count] = group.units
        self._rows["store_timestamp"][self._count : count] = group.store_timestamps_ms
        self._count = count

    def drop_before(self, offset: int) -> bool:
        """Drop the units before an offset; tells whether there are others."""
        self._expired = min(max(self._expired, offset - self._base), self._count)
        return self._expired < self._count

    @property
    def max_offset(self) -> int:
        return self._base + self._count

    @property
    def min_offset(self) -> int:
        minimum = self._log.min_offset
        if minimum != self._checked_min:
            low, high = self._expired, self._count
            while low < high:
                middle = (low + high) // 2
                if int(self._rows["unit"]["physical_offset"][middle]) < minimum:
                    low = middle + 1
                else:
                    high = middle
            self._expired, self._checked_min = low, minimum
        return self._base + self._expired

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from an offset on; none outside [min_offset, max_offset)."""
        if count <= 0 or not self.min_offset <= offset < self.max_offset:
            return np.empty(0, dtype=UNIT_DTYPE)
        first = offset - self._base
        units: Units = self._rows["unit"][first : min(first + count, self._count)].copy()
        return units

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Read (physical offset, size, tags code) of one message; None outside the queue."""
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:  # noqa: ARG002
        """Return the store time (epoch ms) of one message; -1 outside the queue."""
        if not self.min_offset <= offset < self.max_offset:
            return -1
        return int(self._rows["store_timestamp"][offset - self._base])

    def roll_next_file(self, offset: int) -> int:
        """Return the end of the queue, or what is behind the offset: there are no files."""
        return max(self.max_offset, offset + 1)

    def path_of(self, offset: int) -> str:  # noqa: ARG002
        """Return the folder of the commit log: the units are made from it."""
        return self._place


class RebuiltQueues:
    """All queues of a commit log, as far as it was followed. Thread-safe.

    place: the log's folder, for messages; delays_ms: those of the delay levels. start_offset: byte
    of the log at which a message begins, in front of which nothing is read. deleted_ends: queue
    offsets up to which queues were deleted, as far as the log says.
    """

    def __init__(
        self,
        log: CommitLogReader,
        place: str,
        delays_ms: tuple[int, ...],
        *,
        start_offset: int = 0,
    ) -> None:
        self.deleted_ends: dict[QueueKey, int] = {}
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
        """Byte of the log up to which it was read; -1 when nothing was."""
        return self._position

    def list_queues(self) -> Iterable[QueueKey]:
        """List the queues with messages."""
        return list(self._queues)

    def open_queue(self, key: QueueKey) -> RebuiltQueue | None:
        """Return a queue, None without messages."""
        return self._queues.get(key)

    def close(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self._position = self._limit_ms = -1

    def follow(self, limit_ms: int) -> None:
        """Read what the log has got since the last time, up to the first record that is later than
        a store time (epoch ms), or is not whole. Raises Unavailable."""
        with self._lock:
            if limit_ms == self._limit_ms:
                return
            went_back = limit_ms < self._limit_ms
            self._limit_ms = -1
            if went_back or self._position < self._log.min_offset or not self._is_last_the_same():
                # Nothing was read yet, or it is another log: it was cut and went on otherwise.
                self._queues.clear()
                self.deleted_ends.clear()
                self._position, self._last = max(self._log.min_offset, self._start), None
            while self._position < self._log.readable_offset:
                if not self._read_piece(limit_ms):
                    break
            self._limit_ms = limit_ms

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Find the messages of the log behind the last that was followed, of the topics that
        `is_taken` says. Reads all of them. Raises Unavailable."""
        rest = RebuiltQueues(
            self._log,
            self._place,
            self._delays_ms,
            start_offset=max(self._position, self._start),
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
        """Take the records of one piece of the log; tells whether there may be more."""
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
        """How many of the records, from the first on, are whole and not later than the limit."""
        try:
            records = record_columns(piece, positions)
        except Corrupt:
            # One of them is no record: they are looked at one by one, from the first on.
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
        return len(good) if good.all() else int(good.argmin())

    def _take(self, piece: memoryview, records: RecordColumns) -> None:
        """Put the units of these records in their queues, in the order of the log."""
        properties = properties_of(piece, records)
        names = topics(piece, records)
        queue_ids = records.queue_ids.tolist()
        special = ((records.sys_flags & (TRANSACTION_MASK | INNER_BATCH)) != 0).tolist()
        rows: dict[QueueKey, list[int]] = {}
        codes = np.zeros(len(names), dtype=np.int64)
        known: dict[str | None, int] = {}
        for row, (topic, found) in enumerate(zip(names, properties, strict=True)):
            if special[row] or topic in _SPECIAL_TOPICS or b"INNER_MULTI_" in found:
                self._add_runs(records, codes, rows)
                rows = {}
                start = int(records.positions[row])
                self._take_one(decode_record(piece[start : start + int(records.sizes[row])]))
                continue
            rows.setdefault(QueueKey(topic, queue_ids[row]), []).append(row)
            text = find_text(found, b"TAGS")
            code = known.get(text)
            if code is None:
                code = known[text] = tags_code(text)
            codes[row] = code
        self._add_runs(records, codes, rows)
        start, end = int(records.positions[-1]), len(piece)
        end = start + int(records.sizes[-1])
        self._last = self._position + start, bytes(piece[start:end])
        self._position += end

    def _take_one(self, message: StoredMessage) -> None:
        """Put the units of a record that is not plain."""
        if message.topic == DELETION_TOPIC:
            self._drop(TopicDeletion.parse(message))
        if not message.sys_flag & INNER_BATCH:  # whose units are of another form
            groups = find_record_units(message, self._delays_ms, with_light_queues=True)
            for group in groups:
                self._queue(group.key).add(group)

    def _drop(self, deletion: TopicDeletion) -> None:
        """Drop the queues of a topic that was deleted, but what is in them since."""
        for queue_id, end_offset in deletion.end_offsets.items():
            key = QueueKey(deletion.topic, queue_id)
            self.deleted_ends[key] = end_offset
            queue = self._queues.get(key)
            if queue is not None and not queue.drop_before(end_offset):
                del self._queues[key]

    def _add_runs(
        self, records: RecordColumns, codes: npt.NDArray[np.int64], rows: dict[QueueKey, list[int]]
    ) -> None:
        for key, numbers in rows.items():
            chosen: Any = np.array(numbers)
            offsets = records.queue_offsets[chosen]
            units = make_units(
                records.physical_offsets[chosen], records.sizes[chosen], codes[chosen]
            )
            times = records.store_timestamps[chosen]
            starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(numbers)]
            queue = self._queue(key)
            for start, stop in pairwise(starts):
                queue.add(
                    QueueUnits(key, int(offsets[start]), units[start:stop], times[start:stop])
                )

    def _queue(self, key: QueueKey) -> RebuiltQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = RebuiltQueue(key, self._log, self._place)
        return queue
