"""Collects a broker's workload from its store, its tier, and an observation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.jobs.advising import workload
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles

WINDOW_POINTS: Final = 48
"""Number of points of an arrival curve (queue offset by time) within the observed time."""
HISTORY_POINTS: Final = 24
"""Number of points of an arrival curve (queue offset by time) before the observed time."""
_SAMPLES: Final = 16
_SAMPLE_UNITS: Final = 256


def gather_workload(
    source: DispatchSource,
    tier: Iterable[QueueFiles],
    observed: workload.Observed,
    is_tiered: Callable[[str], bool],
    default_hours: int,
) -> workload.Workload:
    """Return the workload of a broker: growth of its queues, and reads of its groups. At most the
    last week of the observation counts. Raises the errors of the source."""
    end_ms = observed.end_ms
    begin_ms = max(observed.begin_ms, end_ms - workload.MAX_WINDOW_MS)
    files = {(found.topic, found.queue_id): found for found in tier}
    hours = source.topic_reserve_hours()
    curves: dict[QueueKey, workload.Arrivals] = {}
    for key in source.queues():
        available = source.queue_range(key)
        if available is None or available.max_offset <= 0:
            continue
        arrivals = _read_arrivals(source, key, available, files.get(key), begin_ms, end_ms)
        recorded = observed.arrivals.get(key)
        curves[key] = arrivals if recorded is None else _insert(arrivals, recorded)
    for key, recorded in observed.arrivals.items():
        curves.setdefault(key, recorded)  # the store has lost the queue
    queues = [
        workload.QueueLoad(key, arrivals, hours.get(key.topic, default_hours), is_tiered(key.topic))
        for key, arrivals in curves.items()
    ]
    readings = [reading for reading in observed.readings if reading.begin_ms >= begin_ms - 1]
    assumed = list(observed.missing)
    if not queues:
        assumed.append("the store has no messages")
    elif not sum(queue.arrivals.between(begin_ms, end_ms).messages for queue in queues):
        assumed.append("no message came in that time: uploads cost nothing there")
    return workload.Workload(begin_ms, end_ms, queues, readings, assumed)


def _insert(arrivals: workload.Arrivals, recorded: workload.Arrivals) -> workload.Arrivals:
    """Combine two arrival curves of one queue. Points of `recorded` replace those of `arrivals`
    within the recorded time."""
    times, offsets = arrivals.times_ms, arrivals.offsets
    before = (times < recorded.times_ms[0]) & (offsets <= recorded.offsets[0])
    behind = (times > recorded.times_ms[-1]) & (offsets >= recorded.offsets[-1])
    return workload.Arrivals(
        np.concatenate([times[before], recorded.times_ms, times[behind]]),
        np.concatenate([offsets[before], recorded.offsets, offsets[behind]]),
        recorded.record_bytes or arrivals.record_bytes,
    )


def _read_arrivals(
    source: DispatchSource,
    key: QueueKey,
    available: QueueRange,
    files: QueueFiles | None,
    begin_ms: float,
    end_ms: float,
) -> workload.Arrivals:
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
            # A message of that very store time has come by then.
            points[time_ms] = float(source.offset_by_time(key, int(time_ms) + 1))
        points[min(earliest_ms - 1, before_ms - 1)] = float(low)
    for extent in files.consume_queue if files is not None else ():
        if extent.times is None or extent.times[0] <= 0:
            continue
        first_ms, last_ms = float(extent.times[0] - 1), float(extent.times[1])
        for time_ms, position in ((first_ms, extent.base_offset), (last_ms, extent.end_offset)):
            if position / UNIT_SIZE < low and (earliest_ms < 0 or time_ms < earliest_ms):
                points[time_ms] = position / UNIT_SIZE
    if len(points) < 2:
        points |= {begin_ms: float(high), end_ms: float(high)}
    times = np.array(sorted(points))
    offsets = np.maximum.accumulate(np.array([points[time] for time in times.tolist()]))
    return workload.Arrivals(times, offsets, _sample_size(source, key, available))


def _sample_size(source: DispatchSource, key: QueueKey, available: QueueRange) -> float:
    """Return the mean message size of a sample of the queue, including the newest messages."""
    low, high = available.min_offset, available.max_offset
    begins = np.linspace(low, max(high - _SAMPLE_UNITS, low), _SAMPLES).tolist()
    sizes = [
        source.read_units(key, begin, min(_SAMPLE_UNITS, high - begin))["size"].astype(np.int64)
        for begin in sorted({int(offset) for offset in begins})
        if begin < high
    ]
    found = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    found = found[found > 0]
    return float(found.mean()) if len(found) else 0.0
