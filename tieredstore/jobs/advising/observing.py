"""Observation of a broker: snapshots of its `consumerOffset.json`, or a trace of its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.file_operations import cut_zeros
from tieredstore.errors import Corrupt, Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.jobs.advising.workload import MAX_WINDOW_MS, Arrivals, Observed, Progress, Reading
from tieredstore.scan.times import parse_time
from tieredstore.tier.trace.blocks import Rows, TraceBlock
from tieredstore.tier.trace.service import read_trace_files

MAX_POINTS: Final = 4_096
"""Maximum number of points of a curve. A longer curve is thinned."""
MAX_READINGS: Final = 20_000
MIN_SPAN_MS: Final = 10_000
"""Minimum time between the first snapshot and the last one. A shorter time is not enough to
estimate the load."""
T = TypeVar("T")
_MAX_BYTES: Final = 1 << 30
_TABLES: Final = ("offsetTable", "lmqOffsetTable")


class GroupQueue(NamedTuple):
    """Consumer group and a queue that it consumes."""

    group: str
    key: QueueKey


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Next offset of each group in each queue at one time, epoch ms."""

    taken_ms: int
    offsets: Mapping[GroupQueue, int]


def read_snapshots(files: Mapping[Path, int | None]) -> list[Snapshot]:
    """Read snapshot files and sort them by time. `files`: time of each file, epoch ms, or None for
    its modification time. Raises Invalid if they span less than ten seconds, Corrupt for a file
    that is not a snapshot."""
    found = sorted(
        (read_snapshot(path, taken_ms) for path, taken_ms in files.items()),
        key=lambda snapshot: snapshot.taken_ms,
    )
    span_ms = found[-1].taken_ms - found[0].taken_ms if found else 0
    if span_ms < MIN_SPAN_MS:
        raise Invalid(
            f"{len(found)} snapshots of consumer offsets within {span_ms} ms: expected at least "
            "two, ten seconds or more apart. Give the time as FILE@TIME where it differs from the "
            "modification time"
        )
    return found


def read_snapshot(path: Path, taken_ms: int | None = None) -> Snapshot:
    """Read one snapshot file. Raises Invalid for an unreadable file, Corrupt for a file that is not
    a snapshot."""
    try:
        status = path.stat()
        if status.st_size > _MAX_BYTES:
            raise Corrupt(f"{path}: {status.st_size} bytes are no file of consumer offsets")
        data = path.read_bytes()
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}", path=str(path)) from error
    if taken_ms is None:
        taken_ms = status.st_mtime_ns // 1_000_000
    return Snapshot(taken_ms, _parse(data, path))


def parse_snapshot_name(text: str, now_ms: int) -> tuple[Path, int | None]:
    """Parse `FILE` or `FILE@TIME`. Raises Invalid for a bad time."""
    if Path(text).exists() or "@" not in text:
        return Path(text), None
    name, _, time = text.rpartition("@")
    return Path(name), parse_time(time, now_ms)


def _parse(data: bytes, path: Path) -> dict[GroupQueue, int]:
    try:
        file: dict[str, object] = msgspec.json.decode(
            quote_integer_keys(cut_zeros(data)), type=dict[str, object]
        )
        if not any(table in file for table in _TABLES):
            raise Corrupt(
                f"{path}: expected {_TABLES[0]}, as in consumerOffset.json, found "
                f"{', '.join(list(file)[:5]) or 'nothing'}",
                path=str(path),
            )
        tables = msgspec.convert(
            file.get(_TABLES[0]) or {}, dict[str, dict[int, int]], strict=False
        )
        light = msgspec.convert(file.get(_TABLES[1]) or {}, dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path}: no file of consumer offsets: {error}", path=str(path)) from error
    found: dict[GroupQueue, int] = {}
    for name, queues in (*tables.items(), *((name, {0: end}) for name, end in light.items())):
        topic, _, group = name.partition("@")
        for queue_id, offset in queues.items():
            found[GroupQueue(group, QueueKey(topic, queue_id))] = offset
    return found


def find_readings(snapshots: Sequence[Snapshot]) -> Iterator[Reading]:
    """Yield the messages that groups read between consecutive snapshots. A group is skipped if its
    offset did not increase, or if the first snapshot does not contain it."""
    for before, after in pairwise(snapshots):
        if after.taken_ms <= before.taken_ms:
            continue
        for place, last in after.offsets.items():
            first = before.offsets.get(place)
            if first is not None and first < last:
                times = float(before.taken_ms), float(after.taken_ms)
                yield Reading(place.group, place.key, first, last, *times)


def observe_snapshots(snapshots: Sequence[Snapshot]) -> Observed:
    """Return the observation between the first snapshot and the last one."""
    return Observed(
        float(snapshots[0].taken_ms), float(snapshots[-1].taken_ms), list(find_readings(snapshots))
    )


def read_trace(path: Path) -> Observed:
    """Read the last week of a trace: a file, a folder of files, or a store's folder. `missing`
    lists damaged parts. Raises Invalid for a trace that spans no time, Unavailable."""
    blocks: list[TraceBlock] = []
    damaged = 0
    for _, found, places in read_trace_files(path):
        blocks += found
        damaged += places
    begin_ms = min((block.begin_ms for block in blocks), default=0)
    end_ms = max((block.end_ms for block in blocks), default=0)
    if begin_ms >= end_ms:
        raise Invalid(f"{path}: the trace spans no time", path=str(path))
    begin_ms = max(begin_ms, end_ms - MAX_WINDOW_MS)
    blocks = [block for block in blocks if block.end_ms > begin_ms]
    blocks.sort(key=lambda block: block.begin_ms)
    dropped = sum(block.dropped for block in blocks)
    readings = _find_readings(blocks)
    missing = []
    if damaged:
        missing.append(f"{damaged} places of the trace are damaged and left out")
    if dropped:
        missing.append(f"{dropped} rows of the trace could not be written")
    if len(readings) > MAX_READINGS:
        missing.append(f"of {len(readings)} runs of reads the first {MAX_READINGS} are replayed")
    arrivals = dict(_find_arrivals(blocks))
    return Observed(float(begin_ms), float(end_ms), readings[:MAX_READINGS], arrivals, missing)


def _find_arrivals(blocks: Sequence[TraceBlock]) -> Iterator[tuple[QueueKey, Arrivals]]:
    numbers: dict[QueueKey, int] = {}
    rows = np.concatenate(
        [_renumber(block.puts, "queue", block.queues, numbers) for block in blocks]
    )
    rows = rows[np.lexsort((rows["offset"], rows["queue"]))]
    bounds = np.searchsorted(rows["queue"], np.arange(len(numbers) + 1)).tolist()
    for key, (first, last) in zip(numbers, pairwise(bounds), strict=True):
        if first < last:
            yield key, _make_arrivals(rows[first:last])


def _make_arrivals(rows: Rows) -> Arrivals:
    ends = rows["offset"] + rows["messages"]
    times = np.column_stack([rows["begin_ms"] - 1, rows["end_ms"]]).ravel().astype(np.float64)
    offsets = np.column_stack([rows["offset"], ends]).ravel().astype(np.float64)
    times, offsets = np.maximum.accumulate(times), np.maximum.accumulate(offsets)
    # The last of points with one time counts. The very first point stays.
    kept = np.append(np.diff(times) > 0, True)
    if not kept[0]:
        kept[0], times[0] = True, times[0] - 1
    chosen = _thin(np.flatnonzero(kept))
    size = float(rows["size_bytes"].sum()) / max(int(rows["messages"].sum()), 1)
    return Arrivals(times[chosen], offsets[chosen], size)


def _find_readings(blocks: Sequence[TraceBlock]) -> list[Reading]:
    """Join consecutive gets of a group into readings. A get belongs to a reading if it begins where
    the previous one ended."""
    queues: dict[QueueKey, int] = {}
    groups: dict[str, int] = {}
    parts = []
    for block in blocks:
        rows = _renumber(block.gets, "queue", block.queues, queues)
        parts.append(_renumber(rows, "group", block.groups, groups))
    rows = np.concatenate(parts)
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
        begin, end = rows[first], rows[last - 1]
        found.append(
            Reading(
                names[int(begin["group"])],
                keys[int(begin["queue"])],
                int(begin["offset"]),
                int(end["end_offset"]),
                float(begin["begin_ms"]),
                float(end["end_ms"]),
                _make_progress(rows[first:last]),
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


def _renumber(rows: Rows, name: str, things: Sequence[T], numbers: dict[T, int]) -> Rows:
    """Convert the queue or group numbers of one trace block to those of the whole trace. `name`:
    field of the rows."""
    known = np.array([numbers.setdefault(thing, len(numbers)) for thing in things], np.int64)
    rows = rows.copy()
    rows[name] = known[rows[name]] if len(known) else 0
    return rows


def _thin(places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return at most MAX_POINTS points of a curve, including the first and the last."""
    if len(places) <= MAX_POINTS:
        return places
    return places[np.linspace(0, len(places) - 1, MAX_POINTS).astype(np.intp)]
