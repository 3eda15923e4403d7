"""Plan of an offload: messages, bytes, segments and time."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.run import make_row
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.listing import load_catalogue

_UNITS_PER_READ = 1 << 16
_SAMPLE_BYTES = 32 << 20
MAX_RATE_BYTES_PER_SECOND = 200e6
"""Highest upload rate that an estimate assumes, bytes per second, even if the store can be read
faster."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Messages [from_offset, until_offset) of a queue, their bytes, and their new segments."""

    key: QueueKey
    from_offset: int
    until_offset: int
    message_bytes: int
    segments: int


@dataclass(slots=True)
class DryRun:
    """Totals, and the queues with messages to copy. `seconds`: an estimate from the read speed of a
    sample of the store, at most 200 MB/s. Index segments are not counted."""

    queues: list[QueuePlan] = field(default_factory=list)
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    seconds: float = 0.0

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        return {
            "queues": len(self.queues),
            "messages": self.messages,
            "message_bytes": self.message_bytes,
            "segments": self.segments,
            "estimated_seconds": round(self.seconds, 3),
            "plan": [make_row(queue) for queue in self.queues],
        }


def dry_run(
    config: StoreConfig, source: DispatchSource, provider: SegmentProvider | None
) -> DryRun:
    """Compare the source with the tier (None for an empty tier), without writing anything."""
    there: dict[tuple[str, int], QueueFiles] = {}
    if provider is not None:
        catalogue = load_catalogue(provider, broker=config.broker_name)
        there = {(queue.topic, queue.queue_id): queue for queue in catalogue.queues}
    result = DryRun()
    for key in source.queues():
        available = source.queue_range(key)
        if available is None:
            continue
        files = there.get((key.topic, key.queue_id))
        start = available.min_offset
        if files is not None and files.consume_queue:
            start = max(start, files.consume_queue_max_offset)
        if start >= available.max_offset:
            continue
        plan = _plan_queue(config, source, key, start, available.max_offset, files)
        result.queues.append(plan)
        result.messages += plan.until_offset - plan.from_offset
        result.message_bytes += plan.message_bytes
        result.segments += plan.segments
    result.seconds = _estimate(source, result)
    return result


def _plan_queue(
    config: StoreConfig,
    source: DispatchSource,
    key: QueueKey,
    start: int,
    end: int,
    files: QueueFiles | None,
) -> QueuePlan:
    log_size = unit_bytes = -1  # No segment yet.
    if files is not None and files.commit_log:
        log_size = files.commit_log[-1].size_bytes
    if files is not None and files.consume_queue:
        unit_bytes = files.consume_queue[-1].size_bytes
    total, segments = 0, 0
    offset = start
    while offset < end:
        units = source.read_units(key, offset, min(_UNITS_PER_READ, end - offset))
        if not len(units):
            break
        sizes = units["size"].astype(np.int64)
        made, log_size = roll(sizes, log_size, config.commit_log_max_size_bytes)
        segments += made
        total += int(sizes.sum())
        offset += len(units)
    units_per_segment = config.consume_queue_max_size_bytes // UNIT_SIZE
    room = units_per_segment - unit_bytes // UNIT_SIZE if unit_bytes >= 0 else 0
    rest = max(offset - start - room, 0)
    segments += -(-rest // units_per_segment)
    return QueuePlan(key, start, offset, total, segments)


def roll(sizes: npt.NDArray[np.int64], used: int, most: int) -> tuple[int, int]:
    """Return the number of new segments for messages of the given sizes, and the bytes in the last
    segment. `used`: bytes in the last existing segment, or -1 without one. `most`: maximum size of
    a segment."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    made = done = at = 0
    if used >= 0:
        at = int(np.searchsorted(ends[1:], most - used, side="right"))
        done = int(ends[at])
        used += done
    while at < len(sizes):
        made += 1
        at = max(int(np.searchsorted(ends[1:], done + most, side="right")), at + 1)
        used, done = int(ends[at]) - done, int(ends[at])
    return made, used


def _estimate(source: DispatchSource, plan: DryRun) -> float:
    """Estimate the seconds of the run, by reading up to 32 MiB of the messages."""
    read, start = 0, time.monotonic()
    for queue in plan.queues:
        offset = queue.from_offset
        while offset < queue.until_offset and read < _SAMPLE_BYTES:
            units = source.read_units(queue.key, offset, min(1024, queue.until_offset - offset))
            if not len(units):
                break
            with suppress(Corrupt):  # One damaged record. The run will leave it out.
                source.read_records(units)
            read += int(units["size"].sum())
            offset += len(units)
    seconds = time.monotonic() - start
    rate = MAX_RATE_BYTES_PER_SECOND
    if read and seconds > 0:
        rate = min(rate, read / seconds)
    return plan.message_bytes / rate
