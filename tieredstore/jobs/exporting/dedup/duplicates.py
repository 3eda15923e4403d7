"""Search for duplicates: messages with the key of an earlier message."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tieredstore.jobs.exporting.dedup.keys import (
    RECORD,
    Array,
    read_array,
    read_section,
    write_array,
)
from tieredstore.jobs.exporting.targets.storage import Files, Folder, translate_errors, try_again

DROP = np.dtype([("range", "<u4"), ("offset", "<i8")])
"""Message that is not exported because it is a duplicate: number of its range, and queue offset."""


class DropSection(msgspec.Struct, frozen=True, array_like=True):
    """Entries [first, first + count) of a staged file of duplicates, for write task number
    `task`."""

    name: str
    task: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class FindTask:
    """Task that finds the duplicates in sections [first, last) of staged keys. `new`, `known`:
    files with the keys of new and of exported messages. `task_starts`: number of the first range of
    each write task."""

    number: int
    folder: Folder
    prefix: str
    first: int
    last: int
    new: tuple[str, ...]
    known: tuple[str, ...]
    task_starts: tuple[int, ...]
    window_ms: int
    size_bytes: int

    @property
    def key(self) -> str:
        return str(self.number)


def find_duplicates(task: FindTask) -> list[DropSection]:
    """Find and stage the duplicates in the sections of a task. Raises Unavailable like
    `try_again`."""
    return try_again(task.folder, f"duplicates {task.key}", lambda files: _find_once(task, files))


def _find_once(task: FindTask, files: Files) -> list[DropSection]:
    def read(names: Sequence[str]) -> Array:
        parts = [read_section(files, name, task.first, task.last) for name in names]
        return np.concatenate([np.empty(0, RECORD), *parts])

    with translate_errors(task.folder.place):
        drops = choose_drops(read(task.new), read(task.known), task.window_ms)
        if not len(drops):
            return []
        name = f"{task.prefix}{task.number:05d}-{uuid.uuid4().hex[:12]}.drops"
        write_array(files, name, [drops])
    owners = np.searchsorted(task.task_starts, drops["range"], side="right") - 1
    tasks, firsts, counts = np.unique(owners, return_index=True, return_counts=True)
    return [
        DropSection(name, *numbers)
        for numbers in zip(tasks.tolist(), firsts.tolist(), counts.tolist(), strict=True)
    ]


def choose_drops(new: Array, known: Array, window_ms: int) -> Array:
    """Return the positions of the new messages that are duplicates, sorted. A duplicate has the key
    of a known message, or of an earlier new message, stored at most `window_ms` apart. New messages
    are ordered by store time, then by position."""
    rows = np.concatenate([new, known])
    is_new = np.arange(len(rows)) < len(new)
    order = np.lexsort((rows["offset"], rows["range"], rows["time_ms"], rows["low"], rows["high"]))
    rows, is_new = rows[order], is_new[order]
    index, times = np.arange(len(rows)), rows["time_ms"]
    begins = (np.diff(rows["high"]) != 0) | (np.diff(rows["low"]) != 0)
    groups = np.concatenate([[0], np.cumsum(begins)])[: len(rows)]

    def is_near(others: Array) -> Array:
        there = (others >= 0) & (others < len(rows))
        others = np.where(there, others, index)
        earlier, later = np.minimum(times, times[others]), np.maximum(times, times[others])
        # Unsigned numbers hold any difference: two times may be 2^63 ms apart and more.
        apart_ms = later.view(np.uint64) - earlier.view(np.uint64)
        near: Array = there & (groups[others] == groups) & (apart_ms <= window_ms)
        return near

    last_new = np.maximum.accumulate(np.where(is_new, index, -1))
    last_known = np.maximum.accumulate(np.where(is_new, -1, index))
    next_known = np.minimum.accumulate(np.where(is_new, len(rows), index)[::-1])[::-1]
    before = np.concatenate([[-1], last_new])[: len(rows)]
    chosen = rows[is_new & (is_near(before) | is_near(last_known) | is_near(next_known))]
    drops = np.empty(len(chosen), DROP)
    drops["range"], drops["offset"] = chosen["range"], chosen["offset"]
    return np.sort(drops)


def read_drops(files: Files, sections: Sequence[DropSection]) -> Mapping[int, Array]:
    """Read the queue offsets to drop, sorted, by range number. Raises Unavailable."""
    if not sections:
        return {}
    drops = np.sort(
        np.concatenate(
            [read_array(files, part.name, DROP, part.first, part.count) for part in sections]
        )
    )
    ranges, firsts = np.unique(drops["range"], return_index=True)
    pieces = np.split(drops["offset"], firsts[1:])
    return dict(zip(ranges.tolist(), pieces, strict=True))
