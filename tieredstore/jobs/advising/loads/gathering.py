"""Reads the workload of a broker out of its store, its tier, and what was observed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tieredstore.jobs.advising.loads.arrivals import Arrivals
from tieredstore.jobs.advising.loads.observed import MOST_WINDOW_MS
from tieredstore.jobs.advising.loads.workload import QueueLoad, Workload
from tieredstore.message.consume_queue import UNIT_SIZE

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
    from tieredstore.jobs.advising.loads.observed import Observed
    from tieredstore.scan.catalogue import QueueFiles

HOUR_MS: Final = 3_600_000
WINDOW_POINTS: Final = 48
"""Into so many parts the time between the snapshots is divided."""
HISTORY_POINTS: Final = 24
_SAMPLES: Final = 16
_SAMPLE_UNITS: Final = 256


def gather_workload(
    source: DispatchSource,
    tier: Iterable[QueueFiles],
    observed: Observed,
    is_tiered: Callable[[str], bool],
    default_hours: int,
) -> Workload:
    """Read how queues grew until the end of what was observed, and what groups read. Of more than a
    week the last one counts. Raises what the source raises."""
    end_ms = observed.end_ms
    begin_ms = max(observed.begin_ms, end_ms - MOST_WINDOW_MS)
    files = {(found.topic, found.queue_id): found for found in tier}
    hours = source.topic_reserve_hours()
    found: dict[QueueKey, Arrivals] = {}
    for key in source.queues():
        available = source.queue_range(key)
        if available is None or available.max_offset <= 0:
            continue
        arrivals = _read_arrivals(source, key, available, files.get(key), begin_ms, end_ms)
        recorded = observed.arrivals.get(key)
        found[key] = arrivals if recorded is None else _put_in(arrivals, recorded)
    for key, recorded in observed.arrivals.items():
        found.setdefault(key, recorded)  # the store has nothing of it any more
    queues = [
        QueueLoad(key, arrivals, hours.get(key.topic, default_hours), is_tiered(key.topic))
        for key, arrivals in found.items()
    ]
    readings = [reading for reading in observed.readings if reading.begin_ms >= begin_ms - 1]
    assumed = [*observed.missing, *_find_assumptions(queues, begin_ms, end_ms)]
    return Workload(begin_ms, end_ms, queues, readings, assumed)


def _put_in(arrivals: Arrivals, recorded: Arrivals) -> Arrivals:
    """What a store tells of a queue, and in the time of a record what that says."""
    times, offsets = arrivals.times_ms, arrivals.offsets
    before = (times < recorded.times_ms[0]) & (offsets <= recorded.offsets[0])
    behind = (times > recorded.times_ms[-1]) & (offsets >= recorded.offsets[-1])
    return Arrivals(
        np.concatenate([times[before], recorded.times_ms, times[behind]]),
        np.concatenate([offsets[before], recorded.offsets, offsets[behind]]),
        recorded.record_bytes or arrivals.record_bytes,
    )


def _find_assumptions(queues: Sequence[QueueLoad], begin_ms: float, end_ms: float) -> list[str]:
    if not queues:
        return ["the store has no messages"]
    arrived = sum(window_of(queue.arrivals, begin_ms, end_ms).messages for queue in queues)
    if arrived:
        return []
    return ["no message came in that time: uploads cost nothing there"]


def window_of(arrivals: Arrivals, begin_ms: float, end_ms: float) -> Arrivals:
    """Return the part of a curve between two times."""
    inner = (arrivals.times_ms > begin_ms) & (arrivals.times_ms < end_ms)
    times = np.concatenate([[begin_ms], arrivals.times_ms[inner], [end_ms]])
    offsets = np.interp(times, arrivals.times_ms, arrivals.offsets)
    return Arrivals(times, offsets, arrivals.record_bytes)


def _read_arrivals(
    source: DispatchSource,
    key: QueueKey,
    available: QueueRange,
    files: QueueFiles | None,
    begin_ms: float,
    end_ms: float,
) -> Arrivals:
    points: dict[float, float] = {}
    low, high = available.min_offset, available.max_offset
    earliest_ms = float(source.earliest_message_time(key))
    if low < high and earliest_ms >= 0:
        before_ms = min(earliest_ms, begin_ms)
        asked = [
            *np.linspace(before_ms, begin_ms, HISTORY_POINTS, endpoint=False).tolist(),
            *np.linspace(begin_ms, end_ms, WINDOW_POINTS + 1).tolist(),
        ]
        for time_ms in asked:
            # What has that very store time has come by then.
            points[time_ms] = float(source.offset_by_time(key, int(time_ms) + 1))
        points[min(earliest_ms - 1, before_ms - 1)] = float(low)
    if files is not None:
        points |= {
            time_ms: offset
            for time_ms, offset in _find_tier_points(files)
            if offset < low and (earliest_ms < 0 or time_ms < earliest_ms)
        }
    if len(points) < 2:
        points |= {begin_ms: float(high), end_ms: float(high)}
    times = np.array(sorted(points))
    offsets = np.maximum.accumulate(np.array([points[time] for time in times.tolist()]))
    return Arrivals(times, offsets, _sample_size(source, key, available))


def _find_tier_points(files: QueueFiles) -> Iterable[tuple[float, float]]:
    """What the metadata tell of segments: their first message's time, and their last one's."""
    for extent in files.consume_queue:
        if extent.times is not None and extent.times[0] > 0:
            yield float(extent.times[0] - 1), extent.base_offset / UNIT_SIZE
            yield float(extent.times[1]), extent.end_offset / UNIT_SIZE


def _sample_size(source: DispatchSource, key: QueueKey, available: QueueRange) -> float:
    """The mean size of messages of all parts of the queue, the newest among them."""
    low, high = available.min_offset, available.max_offset
    begins = {
        int(offset)
        for offset in np.linspace(low, max(high - _SAMPLE_UNITS, low), _SAMPLES).tolist()
    }
    sizes = [
        source.read_units(key, begin, min(_SAMPLE_UNITS, high - begin))["size"].astype(np.int64)
        for begin in sorted(begins)
        if begin < high
    ]
    found = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    found = found[found > 0]
    return float(found.mean()) if len(found) else 0.0


def count_topics(queues: Sequence[QueueLoad]) -> Mapping[str, int]:
    """Count the queues of each topic."""
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue.key.topic] = counts.get(queue.key.topic, 0) + 1
    return counts
