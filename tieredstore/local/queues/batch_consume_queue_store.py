"""All batch consume queues of a store: `batchconsumequeue/<topic>/<queueId>/`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY, list_queues
from tieredstore.local.queues.names import check_queue_name
from tieredstore.local.queues.unit_search import find_first
from tieredstore.message.consume_queue import (
    BATCH_UNIT_DTYPE,
    BATCH_UNIT_SIZE,
    BatchUnit,
    pack_batch_unit,
)
from tieredstore.message.hashes import tags_code
from tieredstore.message.properties import parse_number
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

BatchUnits = npt.NDArray[np.void]
"""Units as an array of `message.consume_queue.BATCH_UNIT_DTYPE`."""

DEFAULT_FILE_SIZE: Final = 300_000 * BATCH_UNIT_SIZE
"""Size in bytes of Java's files (`mapperFileSizeBatchConsumeQueue`)."""


class BatchConsumeQueue:
    """Messages [min_offset, max_offset) of a topic with `queue.type=BatchCQ`. As in Java, these are
    -1 and 0 for an empty queue. One writer, any number of readers. Units are numbered from byte 0
    of the queue's address space. Units in [first, end) are readable."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        files: PositionalFiles,
        file_size: int | None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.first = 0
        self.end = 0
        self._directory = directory
        self._files = files
        self._file_size = file_size or 0
        self._start = 0  # bytes: begin of the first file, end of the last one
        self._files_end = 0
        self._lock = threading.Lock()
        self._dirty_from = -1  # bytes

    def load(self, *, owner: bool) -> None:
        """Find the files and the last unit. Raises Corrupt, Invalid or Unavailable."""
        run = list_files(
            self._directory,
            file_size=self._file_size or None,
            unit_size=BATCH_UNIT_SIZE,
            delete_empty_last=owner,
        )
        self._file_size = run.file_size or self._file_size
        self._start, self._files_end = run.start, run.end
        self.first = run.start // BATCH_UNIT_SIZE
        # Units are written in order, and bytes that were never written are zero: no unit.
        self.end = self._search(
            self.first, run.end // BATCH_UNIT_SIZE, lambda unit: not _is_valid(unit)
        )

    def _search(self, low: int, high: int, is_right: Callable[[BatchUnit], bool]) -> int:
        """Return the first unit in [low, high) for which `is_right` is true, or `high`. If
        `is_right` is true for a unit, it must be true for all later ones."""
        return find_first(low, high, lambda number: is_right(self.unit(number)))

    def unit(self, number: int) -> BatchUnit:
        """Read one unit. It must be within the files."""
        return BatchUnit(*self._read(number, 1)[0].item())

    def read_units(self, number: int, count: int) -> BatchUnits:
        """Read up to `count` units, fewer at the end of a file or of the queue."""
        count = min(count, self.end - number)
        if number < self.first or count <= 0:
            return np.empty(0, dtype=BATCH_UNIT_DTYPE)
        per_file = self._file_size // BATCH_UNIT_SIZE
        return self._read(number, min(count, per_file - number % per_file))

    def _read(self, number: int, count: int) -> BatchUnits:
        path, inside = self._place(number)
        data = self._files.read(path, count * BATCH_UNIT_SIZE, inside)
        return np.frombuffer(data, dtype=BATCH_UNIT_DTYPE)

    def _place(self, number: int) -> tuple[str, int]:
        position = number * BATCH_UNIT_SIZE
        inside = position % self._file_size
        return f"{self._directory}/{file_name(position - inside)}", inside

    def path_of(self, number: int) -> str:
        """Return the path of the file that contains the unit `number`."""
        return self._place(number)[0] if self._file_size else str(self._directory)

    @property
    def min_offset(self) -> int:
        return self.unit(self.first).base_offset if self.first < self.end else -1

    @property
    def max_offset(self) -> int:
        if self.end <= self._start // BATCH_UNIT_SIZE:
            return 0
        last = self.unit(self.end - 1)
        return last.base_offset + last.batch_size

    @property
    def max_physical_offset(self) -> int:
        """End of the last record in the queue (bytes of the commit log), or 0 without records."""
        if self.end <= self._start // BATCH_UNIT_SIZE:
            return 0
        last = self.unit(self.end - 1)
        return last.physical_offset + last.size

    def find(self, offset: int) -> int:
        """Return the last unit that begins at or before the queue offset `offset`, or the first
        unit."""
        behind = self._search(self.first, self.end, lambda unit: unit.base_offset > offset)
        return max(behind - 1, self.first)

    def has(self, offset: int) -> bool:
        """Return whether a queue offset is in the queue."""
        return 0 <= self.min_offset <= offset < self.max_offset

    def store_time(self, offset: int) -> int:
        """Return the store time (epoch ms) of a message, or -1 outside the queue."""
        if not self.has(offset):
            return -1
        return self.unit(self.find(offset)).store_timestamp_ms

    def find_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Return the queue offset of the first message stored at or after `timestamp_ms`, or
        max_offset. With `upper`, return the last message stored at or before it, or min_offset."""
        if self.first >= self.end:
            return 0
        if upper:
            behind = self._search(
                self.first, self.end, lambda unit: unit.store_timestamp_ms > timestamp_ms
            )
            if behind == self.first:
                return self.min_offset
            unit = self.unit(behind - 1)
            return unit.base_offset + unit.batch_size - 1
        number = self._search(
            self.first, self.end, lambda unit: unit.store_timestamp_ms >= timestamp_ms
        )
        return self.max_offset if number == self.end else self.unit(number).base_offset

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the beginning of the queue to the first record that is still in the commit log."""
        self.first = self._search(
            self._start // BATCH_UNIT_SIZE,
            self.end,
            lambda unit: unit.physical_offset >= min_physical_offset,
        )

    def limit_to_time(self, timestamp_ms: int) -> None:
        """End the queue for a reader after the last unit stored at or before `timestamp_ms`."""
        self.end = self._search(
            self.first, self.end, lambda unit: unit.store_timestamp_ms > timestamp_ms
        )

    # The rest is only for the owner.

    def append(self, unit: BatchUnit) -> None:
        """Append the unit of a record. As in Java, the unit is skipped if the record's position
        shows that the queue already has it. Raises Exhausted or Unavailable."""
        with self._lock:
            if unit.physical_offset + unit.size <= self.max_physical_offset:
                return
            self._file_size = self._file_size or DEFAULT_FILE_SIZE
            position = self.end * BATCH_UNIT_SIZE
            path, inside = self._place(self.end)
            if position >= self._files_end:
                self._files.create(path, self._file_size)
                self._files_end = position - inside + self._file_size
            self._mark_dirty(position)
            self._files.write(path, pack_batch_unit(unit), inside)
            self.end += 1

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records that end after `physical_offset`."""
        with self._lock:
            start = self._start // BATCH_UNIT_SIZE
            end = self._search(
                start, self.end, lambda unit: unit.physical_offset + unit.size > physical_offset
            )
            self._mark_dirty(end * BATCH_UNIT_SIZE)
            for number in range(end, self.end):  # zeros, so that they are not found again
                path, inside = self._place(number)
                self._files.write(path, bytes(BATCH_UNIT_SIZE), inside)
            self.first, self.end = min(self.first, end), end

    def delete_expired(self, min_physical_offset: int) -> int:
        """Move the beginning of the queue to the first record that is still in the log, and delete
        the files before it, except the last file. Returns the number of deleted files. Raises
        Unavailable if a file cannot be deleted. The next call then continues."""
        with self._lock:
            self.correct_min_offset(min_physical_offset)
            count = 0
            while (
                self._start + self._file_size <= self.first * BATCH_UNIT_SIZE
                and self._start + self._file_size < self._files_end
            ):
                self._files.delete(f"{self._directory}/{file_name(self._start)}")
                self._start += self._file_size
                self._files.sync_folder(self._directory)
                count += 1
            return count

    def _mark_dirty(self, position: int) -> None:
        self._dirty_from = position if self._dirty_from < 0 else min(self._dirty_from, position)

    def sync(self) -> None:
        """Flush the units to disk. Raises Unavailable, and Corrupt if another process truncated or
        deleted a file."""
        with self._lock:
            begin = self._dirty_from
            if begin < 0:
                return
            begin = max(begin - begin % self._file_size, self._start)
            for start in range(begin, self._files_end, self._file_size):
                self._files.sync(f"{self._directory}/{file_name(start)}", self._file_size)
            self._dirty_from = -1


def _is_valid(unit: BatchUnit) -> bool:
    return (
        unit.physical_offset >= 0
        and unit.size > 0
        and unit.base_offset >= 0
        and unit.batch_size > 0
    )


_MAX_COUNT: Final = 2**15 - 1
_log = logging.getLogger(__name__)


class BatchConsumeQueueStore:
    """All batch queues of a store, found by `load`. A new file is as long as the other files in its
    folder. The first file has Java's length (13,800,000 bytes)."""

    def __init__(self, root: Path, files: PositionalFiles) -> None:
        self._directory = root / BATCH_DIRECTORY
        self._files = files
        self._queues: dict[QueueKey, BatchConsumeQueue] = {}
        self.topics: frozenset[str] = frozenset()
        self.unreadable: dict[QueueKey, TieredStoreError] = {}
        """Errors by queue, for queues whose files cannot be read. Such a queue gets no units."""

    def load(self, *, owner: bool) -> None:
        """Find the queues and their last units. Unreadable queues do not affect others. Raises
        Unavailable."""
        self._queues, self.unreadable = {}, {}
        for key in sorted(list_queues(self._directory)):
            try:
                queue = self._make_queue(key)
                queue.load(owner=owner)
            except (Corrupt, Invalid) as error:
                self.unreadable[key] = error
                _log.warning("batch consume queue %s/%d cannot be read: %s", *key, error)
            else:
                self._queues[key] = queue
        self.topics = frozenset(key.topic for key in (*self._queues, *self.unreadable))

    def _make_queue(self, key: QueueKey) -> BatchConsumeQueue:
        check_queue_name(key)
        directory = self._directory / key.topic / str(key.queue_id)
        return BatchConsumeQueue(key.topic, key.queue_id, directory, self._files, None)

    def get(self, key: QueueKey) -> BatchConsumeQueue | None:
        """Return a queue, or None. Raises the error of an unreadable queue."""
        if key in self.unreadable:
            raise self.unreadable[key]
        return self._queues.get(key)

    def append_record(self, message: StoredMessage, physical_offset: int) -> None:
        """Put the unit of a record of several messages. A record of a single message, or without
        the number of its messages, gets no unit in a batch queue. Raises Exhausted or
        Unavailable."""
        base = parse_number(message.get_property("INNER_BASE"))
        if base is None:  # a Java broker with queues in RocksDB does not write it
            base = message.queue_offset
        count = parse_number(message.get_property("INNER_NUM"))
        if not message.sys_flag & INNER_BATCH or count is None:
            return
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return
        if not 0 < count <= _MAX_COUNT:
            return
        key = QueueKey(message.topic, message.queue_id)
        if key in self.unreadable:
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._make_queue(key)
        queue.append(
            BatchUnit(
                physical_offset,
                message.size,
                tags_code(message.tags),
                message.store_timestamp_ms,
                base,
                count,
            )
        )

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records that end after `physical_offset`."""
        for queue in self:
            queue.truncate(physical_offset)

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the beginning of each queue to the first record that is still in the commit log."""
        for queue in self:
            queue.correct_min_offset(min_physical_offset)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Move the beginning of each queue to the first record that is still in the log, and delete
        the files before it. Returns the number of deleted files. Raises Unavailable if a file
        cannot be deleted. The next call then continues."""
        return sum(queue.delete_expired(min_physical_offset) for queue in self)

    def sync(self) -> None:
        """Flush all units put before the call to disk."""
        for queue in self:
            queue.sync()

    def __iter__(self) -> Iterator[BatchConsumeQueue]:
        return iter(list(self._queues.values()))

    @property
    def max_physical_offset(self) -> int:
        """End of the last record in any queue (bytes of the commit log), or 0 without records."""
        return max((queue.max_physical_offset for queue in self), default=0)
