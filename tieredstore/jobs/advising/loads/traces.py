"""Traces that a store recorded, as what came to queues and what groups read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Invalid
from tieredstore.jobs.advising.loads.arrivals import Arrivals, Floats
from tieredstore.jobs.advising.loads.observed import MOST_WINDOW_MS, Observed
from tieredstore.jobs.advising.loads.workload import Progress, Reading
from tieredstore.tier.trace.blocks import Rows, TraceBlock
from tieredstore.tier.trace.files import read_trace_files

MOST_POINTS: Final = 4_096
"""Points of a curve: of more, so many of them are taken."""
MOST_READINGS: Final = 20_000
T = TypeVar("T")


def read_trace(path: Path) -> Observed:
    """Read the last week of a trace: a file, a folder of such, or a store's folder. Damaged places
    are told of and left out. Raises Invalid for one that spans no time, Unavailable."""
    blocks: list[TraceBlock] = []
    damaged = 0
    for _, found, places in read_trace_files(path):
        blocks += found
        damaged += places
    begin_ms = min((block.begin_ms for block in blocks), default=0)
    end_ms = max((block.end_ms for block in blocks), default=0)
    if begin_ms >= end_ms:
        raise Invalid(f"{path}: the trace spans no time", path=str(path))
    begin_ms = max(begin_ms, end_ms - MOST_WINDOW_MS)
    blocks = [block for block in blocks if block.end_ms > begin_ms]
    blocks.sort(key=lambda block: block.begin_ms)
    missing = []
    if damaged:
        missing.append(f"{damaged} places of the trace are damaged and left out")
    dropped = sum(block.dropped for block in blocks)
    if dropped:
        missing.append(f"{dropped} rows of the trace could not be written")
    readings = _find_readings(blocks)
    if len(readings) > MOST_READINGS:
        missing.append(f"of {len(readings)} runs of reads the first {MOST_READINGS} are replayed")
    return Observed(
        float(begin_ms),
        float(end_ms),
        readings[:MOST_READINGS],
        dict(_find_arrivals(blocks)),
        missing,
    )


# Puts


def _find_arrivals(blocks: Sequence[TraceBlock]) -> Iterator[tuple[QueueKey, Arrivals]]:
    numbers: dict[QueueKey, int] = {}
    rows = _join([_renumber(block.puts, "queue", block.queues, numbers) for block in blocks])
    order = np.lexsort((rows["offset"], rows["queue"]))
    rows = rows[order]
    for key, (first, last) in zip(numbers, _find_spans(rows["queue"], len(numbers)), strict=True):
        if first < last:
            yield key, _make_arrivals(rows[first:last])


def _make_arrivals(rows: Rows) -> Arrivals:
    """The curve through the begins and ends of rows, in the order of their offsets."""
    ends = rows["offset"] + rows["messages"]
    times = np.column_stack([rows["begin_ms"] - 1, rows["end_ms"]]).ravel().astype(np.float64)
    offsets = np.column_stack([rows["offset"], ends]).ravel().astype(np.float64)
    times, offsets = np.maximum.accumulate(times), np.maximum.accumulate(offsets)
    # Of points of one time the last one counts; the first of all stays.
    kept = np.append(np.diff(times) > 0, True)
    if not kept[0]:
        kept[0], times[0] = True, times[0] - 1
    chosen = _thin(np.flatnonzero(kept))
    size = float(rows["size_bytes"].sum()) / max(int(rows["messages"].sum()), 1)
    return Arrivals(times[chosen], offsets[chosen], size)


# Gets


def _find_readings(blocks: Sequence[TraceBlock]) -> list[Reading]:
    """Gets that go on where the one before ended are one reading."""
    queues: dict[QueueKey, int] = {}
    groups: dict[str, int] = {}
    rows = _join(
        [
            _renumber(
                _renumber(block.gets, "queue", block.queues, queues), "group", block.groups, groups
            )
            for block in blocks
        ]
    )
    rows = rows[np.lexsort((rows["begin_ms"], rows["queue"], rows["group"]))]
    is_next = (
        (rows["queue"][1:] == rows["queue"][:-1])
        & (rows["group"][1:] == rows["group"][:-1])
        & (rows["offset"][1:] == rows["end_offset"][:-1])
    )
    starts = np.flatnonzero(np.append(len(rows) > 0, ~is_next)).tolist()
    keys, names = list(queues), list(groups)
    found = []
    for first, last in pairwise([*starts, len(rows)]):
        part = rows[first:last]
        found.append(
            Reading(
                names[int(part["group"][0])],
                keys[int(part["queue"][0])],
                int(part["offset"][0]),
                int(part["end_offset"][-1]),
                float(part["begin_ms"][0]),
                float(part["end_ms"][-1]),
                _make_progress(part),
            )
        )
    return sorted(found, key=lambda reading: reading.begin_ms)


def _make_progress(rows: Rows) -> Progress:
    gets = np.cumsum(rows["gets"])
    columns = (
        np.column_stack([rows["begin_ms"], rows["end_ms"]]),
        np.column_stack([rows["offset"], rows["end_offset"]]),
        np.column_stack([gets - rows["gets"], gets]),
    )
    chosen = _thin(np.arange(2 * len(rows)))
    times, offsets, counts = (column.ravel().astype(np.float64)[chosen] for column in columns)
    return Progress(np.maximum.accumulate(times), offsets, counts)


# Both


def _renumber(rows: Rows, name: str, things: Sequence[T], numbers: dict[T, int]) -> Rows:
    """The rows of a block with the numbers that the whole trace has for its things."""
    known = np.array([numbers.setdefault(thing, len(numbers)) for thing in things], np.int64)
    rows = rows.copy()
    rows[name] = known[rows[name]] if len(known) else 0
    return rows


def _join(parts: Sequence[Rows]) -> Rows:
    return np.concatenate(parts)


def _find_spans(sorted_numbers: npt.NDArray[np.int32], count: int) -> Iterator[tuple[int, int]]:
    """Where the rows of each number are."""
    firsts = np.searchsorted(sorted_numbers, np.arange(count + 1)).tolist()
    yield from pairwise(firsts)


def _thin(places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The first, the last, and as many between them as there may be."""
    if len(places) <= MOST_POINTS:
        return places
    chosen: Floats = np.linspace(0, len(places) - 1, MOST_POINTS)
    return places[chosen.astype(np.intp)]
