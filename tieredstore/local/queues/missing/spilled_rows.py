"""Rows built from a commit log, kept in memory up to a limit and then in unnamed files."""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import allocate
from tieredstore.disk.user_folders import require_temporary_folder
from tieredstore.local.queues.interface import HeldBack

Rows = npt.NDArray[np.void]

MEMORY_BYTES: Final = 64 << 20
"""Maximum size of the rows of one store in memory. Further rows are stored in files."""
CHUNK_BYTES: Final = 64 << 20
_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 1 << 16


class Spill:
    """Space for rows in memory and files, freed after the last use. Not thread-safe. `folder`:
    folder for the files (default: the folder for temporary files)."""

    def __init__(self, folder: Path | None = None, memory_bytes: int | None = None) -> None:
        self._folder = folder
        self._memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        self._chunk: memoryview = memoryview(b"")

    def make_room(self, dtype: np.dtype[np.void], count: int) -> Rows:
        """Allocate space for rows. Raises Unavailable, Exhausted if there is no space, or Invalid
        if no folder is writable."""
        size = dtype.itemsize * count
        if size <= self._memory_bytes:
            self._memory_bytes -= size
            return np.empty(count, dtype)
        if size > len(self._chunk):
            self._chunk = self._map_chunk(max(size, CHUNK_BYTES))
        taken, self._chunk = self._chunk[:size], self._chunk[size:]
        return np.frombuffer(taken, dtype)

    def _map_chunk(self, size: int) -> memoryview:
        folder = self._folder
        if folder is None or not folder.is_dir():
            folder = Path(require_temporary_folder())
        with (
            wrap_os_errors("make room for rows", folder),
            tempfile.TemporaryFile(dir=folder) as file,
        ):
            allocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
        return memoryview(mapped)


class SpilledRows:
    """Rows of one kind, in the order in which they were added."""

    def __init__(self, spill: Spill, dtype: np.dtype[np.void]) -> None:
        self._spill = spill
        self._dtype = dtype
        self._blocks: list[Rows] = []
        self._begins: list[int] = []
        self._room = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: Rows) -> None:
        """Add rows. Raises the errors of `Spill.make_room`."""
        done = 0
        while done < len(rows):
            if self._count == self._room:
                count = min(max(self._count, len(rows) - done, _FIRST_ROWS), _MOST_ROWS)
                block = self._spill.make_room(self._dtype, count)
                self._blocks.append(block)
                self._begins.append(self._room)
                self._room += count
            block, begin = self._blocks[-1], self._begins[-1]
            first = self._count - begin
            taken = min(len(block) - first, len(rows) - done)
            block[first : first + taken] = rows[done : done + taken]
            self._count += taken
            done += taken

    def clear(self) -> None:
        """Remove all rows."""
        self._blocks, self._begins = [], []
        self._room = self._count = 0

    def __getitem__(self, index: int) -> Any:
        """Return one row."""
        number = bisect_right(self._begins, index) - 1
        return self._blocks[number][index - self._begins[number]]

    def read(self, first: int, end: int) -> Rows:
        """Copy the rows [first, end)."""
        parts = [
            block[max(first - begin, 0) : end - begin]
            for begin, block in zip(self._begins, self._blocks, strict=True)
            if begin < end and begin + len(block) > first
        ]
        return np.concatenate(parts) if parts else np.empty(0, self._dtype)

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows in blocks."""
        for begin, block in zip(self._begins, self._blocks, strict=True):
            yield block[: self._count - begin]


class Late(NamedTuple):
    """Messages of one queue that may not be served yet, because their store time is after a limit.
    `until_offset`: queue offset after the last of them."""

    held_back: HeldBack
    until_offset: int


def find_late(rows: SpilledRows, position: int) -> Late | None:
    """Return the messages of a queue at or after the log offset `position`, or None."""
    count, first_ms, end = 0, -1, 0
    for block in rows.blocks():
        some = block[block["unit"]["physical_offset"] >= position]
        if len(some):
            first_ms = first_ms if count else int(some["store_timestamp"][0])
            count += len(some)
            end = int(some["offset"][-1]) + 1
    return Late(HeldBack(count, first_ms), end) if count else None


def count_without_unit(
    late: Mapping[QueueKey, Late], find_end: Callable[[QueueKey], int]
) -> dict[QueueKey, HeldBack]:
    """Return, for each queue, the messages in `late` that are after the end of the queue's files.
    `find_end`: returns the end of a queue's files, or 0 without files."""
    found = {}
    for key, (held_back, until_offset) in late.items():
        count = min(until_offset - find_end(key), held_back.messages)
        if count > 0:
            found[key] = held_back._replace(messages=count)
    return found


def add_held_back(
    found: Mapping[QueueKey, HeldBack], others: Mapping[QueueKey, HeldBack]
) -> dict[QueueKey, HeldBack]:
    """Add two tables of messages that are not served yet, by queue. The messages in `found` are
    earlier than those in `others`."""
    joined = dict(found)
    for key, other in others.items():
        known = joined.get(key, other._replace(messages=0))
        joined[key] = known._replace(messages=known.messages + other.messages)
    return joined
