"""One batch consume queue: a unit of 46 bytes for each record, which holds several messages.

Units lie one after the other from the first file on (`docs/formats/consume-queue.md`): where one
is says nothing about queue offsets, which are found by a search for the base offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.consume_queue import (
    BATCH_UNIT_DTYPE,
    BATCH_UNIT_SIZE,
    BatchUnit,
    pack_batch_unit,
)

BatchUnits = npt.NDArray[np.void]
"""Units as an array of `message.consume_queue.BATCH_UNIT_DTYPE`."""

DEFAULT_FILE_SIZE: Final = 300_000 * BATCH_UNIT_SIZE
"""Bytes of a file of Java's (`mapperFileSizeBatchConsumeQueue`)."""


class BatchConsumeQueue:
    """Messages [min_offset, max_offset) of a topic with `queue.type=BatchCQ`; an empty queue has
    -1 and 0, as in Java.

    One writer, any number of readers. Numbers are places of units, from 0 at byte 0 of the queue's
    address space; readable are those in [first, end).
    """

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
        self._start = 0  # bytes: first byte of the first file, first byte behind the last one
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
        # Units are written in order, and what was never written is zero: no unit.
        self.end = self._search(
            self.first, run.end // BATCH_UNIT_SIZE, lambda unit: not _is_valid(unit)
        )

    def _search(self, low: int, high: int, is_right: Callable[[BatchUnit], bool]) -> int:
        """The first unit in [low, high) that is right, where all behind one are; else high."""
        while low < high:
            middle = (low + high) // 2
            if is_right(self.unit(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def unit(self, number: int) -> BatchUnit:
        """Read one unit, which has to be within the files."""
        return BatchUnit(*self._read(number, 1)[0].item())

    def read_units(self, number: int, count: int) -> BatchUnits:
        """Read up to `count` units, fewer where a file or the queue ends."""
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
        """Return the path of the file with a unit."""
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
        """End of the last record that the queue knows, bytes of the commit log; 0 without one."""
        if self.end <= self._start // BATCH_UNIT_SIZE:
            return 0
        last = self.unit(self.end - 1)
        return last.physical_offset + last.size

    def find(self, offset: int) -> int:
        """Find the unit whose messages begin at or before a queue offset; the first one where none
        does."""
        behind = self._search(self.first, self.end, lambda unit: unit.base_offset > offset)
        return max(behind - 1, self.first)

    def store_time(self, offset: int) -> int:
        """Return the store time (epoch ms) of a message; -1 outside the queue."""
        if not 0 <= self.min_offset <= offset < self.max_offset:
            return -1
        return self.unit(self.find(offset)).store_timestamp_ms

    def find_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Find the queue offset of the first message at or after a time, max_offset without one;
        with `upper` of the last one at or before it, min_offset without one."""
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
        """Let the queue begin at the first record that the commit log still holds."""
        self.first = self._search(
            self._start // BATCH_UNIT_SIZE,
            self.end,
            lambda unit: unit.physical_offset >= min_physical_offset,
        )

    def limit_to_time(self, timestamp_ms: int) -> None:
        """End the queue, for a reader, behind the last unit with a store time up to this."""
        self.end = self._search(
            self.first, self.end, lambda unit: unit.store_timestamp_ms > timestamp_ms
        )

    # Everything below is for the owner only.

    def append(self, unit: BatchUnit) -> None:
        """Put the unit of a record behind the others; one that is there already is skipped, as in
        Java by its place in the log. Raises Exhausted or Unavailable."""
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
        """Drop the units of records that are not wholly before a commit log offset."""
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
        """Correct the minimum and delete the files in front of it, the last one never; returns how
        many. Raises Unavailable; then the next call goes on."""
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
        """Sync the files: the units are on disk when this returns. Raises Unavailable, or Corrupt
        for a file that was cut off or deleted."""
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
