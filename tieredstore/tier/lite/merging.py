"""Merges and expires runs of lite topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from tieredstore.message.lite_runs import (
    CoveredRange,
    RunContent,
    drop_dead_units,
    merge_contents,
)
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.lite.runs import LiteDirectory, LiteRun

FAN_IN: Final = 8
"""Number of runs of one level that are merged into one run of the next level."""
PART_UNITS: Final = 1 << 19
"""Number of units of a run above which a merge divides the run into parts."""


class ChosenRuns(NamedTuple):
    """Runs to merge. `level`: level of the result. `keeps_deleted`: whether the result must repeat
    the deletions of light queues, because other runs may have messages of these queues."""

    runs: list[LiteRun]
    level: int
    keeps_deleted: bool


def choose_runs(directory: LiteDirectory) -> ChosenRuns | None:
    """Return the oldest runs of the lowest level that has FAN_IN runs, or None."""
    levels: dict[int, list[list[LiteRun]]] = {}
    for group in directory.list_groups().values():
        levels.setdefault(max(run.notes.level for run in group), []).append(group)
    for level in sorted(levels):
        if len(levels[level]) >= FAN_IN:
            chosen = [run for group in levels[level][:FAN_IN] for run in group]
            is_all = len(chosen) == len(directory.runs)
            return ChosenRuns(chosen, level + 1, keeps_deleted=not is_all)
    return None


def count_parts(runs: Iterable[LiteRun]) -> int:
    """Return the number of parts for a run with the units of all these runs."""
    return max(-(-sum(run.unit_count for run in runs) // PART_UNITS), 1)


def find_key_range(part: int, parts: int) -> tuple[int, int]:
    """Return the range [low, high) of light queue keys in part number `part`. The parts divide the
    64-bit keys equally."""
    return (part << 64) // parts, ((part + 1) << 64) // parts


def merge_part(
    chosen: ChosenRuns, log_begins: Mapping[tuple[int, int], int], part: int, parts: int
) -> RunContent:
    """Merge the light queues of one part (`find_key_range`). Messages that are no longer in the
    tier (`log_begins`) are omitted. Raises Unavailable, Corrupt."""
    contents = [run.read_keys(*find_key_range(part, parts)) for run in chosen.runs]
    merged = merge_contents(contents)
    return drop_dead_units(merged, log_begins, keeps_deleted=chosen.keeps_deleted)


def find_log_begins(
    runs: Iterable[LiteRun], flat_files: FlatFileStore
) -> dict[tuple[int, int], int]:
    """Return the beginning of the commit log of each queue that has messages in the runs, by topic
    id and queue id. Deleted queues are omitted."""
    begins: dict[tuple[int, int], int] = {}
    for run in runs:
        for one in run.notes.covered:
            if is_covered_alive(one, flat_files):
                file = flat_files.get(one.topic, one.queue_id)
                is_open = file is not None and file.is_initialised
                begin = file.commit_log_min_offset if file is not None and is_open else 0
                begins[one.topic_id, one.queue_id] = begin
    return begins


def is_covered_alive(one: CoveredRange, flat_files: FlatFileStore) -> bool:
    """Return whether the tier may still have messages of a range. True if the queue cannot be
    opened."""
    entry = flat_files.metadata.topic(one.topic)
    if entry is None or entry.topic_id != one.topic_id:
        return False
    if flat_files.metadata.queue(one.topic, one.queue_id) is None:
        return False
    file = flat_files.get(one.topic, one.queue_id)
    if file is None or not file.is_initialised:
        return True
    return one.log_end > file.commit_log_min_offset


def find_dead_runs(
    directory: LiteDirectory, flat_files: FlatFileStore, *, keeps_deleted: bool
) -> list[LiteRun]:
    """Return the runs whose messages are all gone from the tier. A run with deletions of light
    queues is kept while another run has units of the deleted messages, and with `keeps_deleted`."""
    dead: list[LiteRun] = []
    for group in directory.list_groups().values():
        covered = [one for run in group for one in run.notes.covered]
        if any(is_covered_alive(one, flat_files) for one in covered):
            continue
        others = [run for run in directory.runs if run not in group and run not in dead]
        if not any(_has_deleted(run, others, is_any=keeps_deleted) for run in group):
            dead += group
    return dead


def _has_deleted(run: LiteRun, others: Iterable[LiteRun], *, is_any: bool) -> bool:
    """Return whether a run has deletions of units in other runs, or any deletions (`is_any`)."""
    rows = run.names["deleted"] > 0
    keys, limits = run.keys[rows], run.names["deleted"][rows]
    for other in others if len(keys) else ():
        _, own, its = np.intersect1d(keys, other.keys, assume_unique=True, return_indices=True)
        names = other.names[its]
        if bool(((names["count"] > 0) & (names["first"] < limits[own])).any()):
            return True
    return is_any and len(keys) > 0
