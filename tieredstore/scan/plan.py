"""Plans a scan: which queue offsets to read, cut into ranges that can be read apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import damage
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.time_search.search import is_read_whole, narrow_by_time

RANGE_BYTES = 128 << 20
"""Commit log bytes of one range, about."""
_WITNESSES = 4


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Messages [from_offset, until_offset) of one queue. Picklable.

    since_ms and until_ms: store times [since, until) that messages must have besides; None for no
    bound. size_bytes: commit log bytes that the range covers. is_searched: whether the times were
    searched for, or need not be; else that is for the reader to do.
    """

    queue: QueueFiles
    from_offset: int
    until_offset: int
    size_bytes: int
    since_ms: int | None = None
    until_ms: int | None = None
    is_searched: bool = True

    @property
    def count(self) -> int:
        return self.until_offset - self.from_offset

    @property
    def is_lost(self) -> bool:
        """Whether no segment has its units: reading it tells so."""
        first = self.from_offset
        return not any(start <= first < end for start, end in self.queue.unit_spans())


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """Which messages of each queue are planned, and how they are cut into ranges.

    Queue offsets [from_offset, until_offset) and store times [since_ms, until_ms), None for no
    bound. range_bytes: commit log bytes of a range, about. narrow: whether a range knows only the
    segments that it needs, so that it is small to send. search_times: whether the plan searches for
    the bounds by time; else all messages are read and compared. leave_small: whether it leaves that
    to the reader of a queue of up to 8 MiB.
    """

    from_offset: int | None = None
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    range_bytes: int = RANGE_BYTES
    narrow: bool = False
    search_times: bool = True
    leave_small: bool = True

    @property
    def has_offsets(self) -> bool:
        return self.from_offset is not None or self.until_offset is not None

    @property
    def has_times(self) -> bool:
        return self.since_ms is not None or self.until_ms is not None


ALL: Final = ScanBounds()
"""All messages."""


def plan(
    provider: SegmentProvider, queues: Iterable[QueueFiles], bounds: ScanBounds = ALL
) -> Iterator[ScanRange]:
    """Yield ranges over the messages of `queues` within bounds, in the order of the queues and of
    their offsets. Over a network several queues are planned at once; a queue of one range of which
    nothing has expired is planned without a read.

    Messages whose units are lost are ranges of their own, the reading of which tells so.

    Ranges with time bounds hold messages of other times as well, which are left out where they are
    read. The search in a large queue costs a few hundred small reads at most (`narrow_by_time`).
    Raises Corrupt, Unavailable.
    """

    def plan_one(queue: QueueFiles) -> list[ScanRange]:
        with QueueReader(provider, queue) as reader:
            return list(plan_queue(reader, bounds))

    is_timed = bounds.search_times and bounds.has_times
    is_part = bounds.narrow and bounds.has_offsets

    def waits(queue: QueueFiles) -> bool:
        if is_timed and not (bounds.leave_small and is_read_whole(queue)):
            return True
        return needs_reads(queue, range_bytes=bounds.range_bytes, is_part=is_part)

    for ranges in map_ahead(provider, plan_one, queues, waits=waits):
        yield from ranges


def needs_reads(
    queue: QueueFiles, *, range_bytes: int, is_part: bool, has_least: bool = False
) -> bool:
    """Tell whether planning a queue, but for the search for times, may read anything of it.
    is_part: whether ranges are part of it, and know only the segments that they need. has_least:
    whether its min offset is known."""
    starts_late = queue.commit_log_min_offset > 0 and not has_least
    has_segments = len(queue.commit_log) > 1 or len(queue.consume_queue) > 1
    log_bytes = queue.commit_log_max_offset - queue.commit_log_min_offset
    has_holes = len(queue.consume_queue) > 1 and len(queue.unit_spans()) > 1
    return starts_late or (is_part and has_segments) or log_bytes > range_bytes or has_holes


def plan_queue(reader: QueueReader, bounds: ScanBounds = ALL) -> Iterator[ScanRange]:
    """Do `plan` for one queue, through a reader that the caller has."""
    queue = reader.queue
    begin, behind = reader.min_offset(), reader.max_offset()
    since_ms, until_ms = bounds.since_ms, bounds.until_ms
    low = max(begin, bounds.from_offset or 0)
    high = behind if bounds.until_offset is None else min(behind, bounds.until_offset)
    lost = find_lost_units(reader)
    is_left = False
    if bounds.search_times and not _are_within(queue, since_ms, until_ms):
        is_left = bounds.leave_small and not lost and is_read_whole(queue)
        if not is_left:
            low, high = narrow_by_time(reader, low, high, since_ms=since_ms, until_ms=until_ms)
    for first, last in sorted([*queue.unit_spans(), *lost]):
        start, end = max(first, low), min(last, high)
        if start < end and (first, last) in lost:
            yield ScanRange(queue, start, end, 0, since_ms, until_ms)
        elif start < end:
            for piece in _cut_range(reader, start, end, bounds):
                is_part = piece.from_offset > begin or piece.until_offset < behind
                needed = _narrow_queue(reader, piece) if bounds.narrow and is_part else queue
                yield replace(piece, queue=needed, is_searched=not is_left)


def _are_within(queue: QueueFiles, since_ms: int | None, until_ms: int | None) -> bool:
    """Whether there are no bounds, or the metadata say that all messages are within them."""
    if since_ms is None and until_ms is None:
        return True
    return all(
        extent.times is not None
        and extent.size_bytes <= extent.recorded_bytes
        and (since_ms is None or extent.times[0] >= since_ms)
        and (until_ms is None or extent.times[1] < until_ms)
        for extent in queue.commit_log
    )


def _cut_range(
    reader: QueueReader, start: int, end: int, bounds: ScanBounds
) -> Iterator[ScanRange]:
    range_bytes = bounds.range_bytes
    total = _estimate_bytes(reader.queue, start, end, range_bytes)
    if total is None:
        total = _log_bytes(reader, start, end)
    pieces = max(1, -(-total // range_bytes))
    step = max(1, -(-(end - start) // pieces))
    for first in range(start, end, step):
        last = min(first + step, end)
        size = total if pieces == 1 else _log_bytes(reader, first, last)
        yield ScanRange(reader.queue, first, last, size, bounds.since_ms, bounds.until_ms)


def _estimate_bytes(queue: QueueFiles, start: int, end: int, most_bytes: int) -> int | None:
    """Commit log bytes of some messages, about, where all of the queue are one range."""
    total = queue.commit_log_max_offset - queue.commit_log_min_offset
    units = sum(extent.size_bytes for extent in queue.consume_queue) // UNIT_SIZE
    return None if total > most_bytes else total * (end - start) // max(units, 1)


def _narrow_queue(reader: QueueReader, piece: ScanRange) -> QueueFiles:
    """The queue with the segments of a range alone. Several units speak for each end: one may be
    damaged, and messages beside it are not lost for that."""
    if len(reader.queue.commit_log) < 2 and len(reader.queue.consume_queue) < 2:
        return reader.queue
    count = min(_WITNESSES, piece.count)
    heads = reader.read_units(piece.from_offset, count)
    tails = reader.read_units(piece.until_offset - count, count)
    low = int(heads["physical_offset"].min())
    high = int((tails["physical_offset"].astype(np.int64) + tails["size"]).max())
    return narrow_to(reader.queue, piece.from_offset, piece.until_offset, low, high)


def narrow_to(
    queue: QueueFiles, from_offset: int, until_offset: int, low: int, high: int
) -> QueueFiles:
    """Return the queue with the segments alone that have the units of [from_offset, until_offset)
    or the bytes [low, high) of its commit log."""
    low_unit, high_unit = from_offset * UNIT_SIZE, until_offset * UNIT_SIZE
    return replace(
        queue,
        commit_log=_select_within(queue.commit_log, low, high),
        consume_queue=_select_within(queue.consume_queue, low_unit, high_unit),
    )


def _select_within(
    extents: tuple[SegmentExtent, ...], low: int, high: int
) -> tuple[SegmentExtent, ...]:
    """Those that have bytes of [low, high), or all if the bounds make no sense."""
    found = tuple(e for e in extents if e.base_offset < high and e.end_offset > low)
    return found or extents


def _log_bytes(reader: QueueReader, start: int, end: int) -> int:
    first = reader.read_units(start, 1)[0]
    last = reader.read_units(end - 1, 1)[0]
    size = int(last["physical_offset"]) + int(last["size"]) - int(first["physical_offset"])
    # A damaged unit may name any place.
    return min(max(size, 0), sum(extent.size_bytes for extent in reader.queue.commit_log))


def store_time(reader: QueueReader, offset: int) -> int:
    """Store time of one message, epoch ms. Raises Corrupt when its unit names no record."""
    unit = reader.read_units(offset, 1)[0]
    size = int(unit["size"])
    if size < MIN_RECORD_SIZE:
        segment, position = reader.unit_place(offset)
        raise damage(
            "unit-invalid",
            "a consume queue unit with an impossible message size",
            segment=segment,
            position=position,
            queue_offset=offset,
            expected=f"at least {MIN_RECORD_SIZE}",
            found=str(size),
        ).to_error()
    head = reader.commit_log.read(int(unit["physical_offset"]), MIN_RECORD_SIZE)
    return StoredMessage(head, 0, size).store_timestamp_ms
