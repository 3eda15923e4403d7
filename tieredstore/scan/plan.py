"""Plan of a scan: the queue offsets to read, cut into independent ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import BLANK_SIZE, MIN_RECORD_SIZE
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, Witness
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader, find_message
from tieredstore.scan.findings import damage
from tieredstore.scan.generation import take_witness
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.time_search.exact import Window
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.time_search.search import (
    Unrecorded,
    find_runs,
    is_read_whole,
    narrow_by_time,
    warn_unrecorded,
)
from tieredstore.scan.time_search.store_times import read_times

RANGE_BYTES = 128 << 20
"""Approximate commit log bytes of one range."""
_WITNESSES = 4


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Messages [from_offset, until_offset) of one queue. Picklable. `since_ms`, `until_ms`: store
    times [since, until) of the wanted messages, or None. `size_bytes`: commit log bytes of the
    range. `is_searched`: the reader can skip the search for these times. `witness`: message that
    identifies the topic, in order to detect that it was recreated after the plan."""

    queue: QueueFiles
    from_offset: int
    until_offset: int
    size_bytes: int
    since_ms: int | None = None
    until_ms: int | None = None
    is_searched: bool = True
    witness: Witness | None = None

    @property
    def count(self) -> int:
        return self.until_offset - self.from_offset

    @property
    def is_lost(self) -> bool:
        """Whether the units of the range are lost. A read of the range reports the loss."""
        first = self.from_offset
        return not any(start <= first < end for start, end in self.queue.unit_spans())


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """Bounds of the messages of each queue, and the size of the ranges. None means no bound. Queue
    offsets [from_offset, until_offset) and store times [since_ms, until_ms). `range_bytes`:
    approximate commit log bytes of a range. `narrow`: a range has only the segments that it needs,
    so that it is small to send. `search_times`: mode of the search for bounds by time.
    `leave_search`: whether a search that reads the head of every message is left to the reader of a
    range. `has_witness`: whether every range gets a witness, because another process may read it.
    Otherwise only ranges of large queues whose plan needs reads, and ranges that are parts of one
    queue, get a witness."""

    from_offset: int | None = None
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    range_bytes: int = RANGE_BYTES
    narrow: bool = False
    search_times: SearchTimes = SearchTimes.EXACT
    leave_search: bool = True
    has_witness: bool = False

    @property
    def has_times(self) -> bool:
        return self.since_ms is not None or self.until_ms is not None


ALL: Final = ScanBounds()
"""Bounds that include all messages."""


def plan(
    provider: SegmentProvider, queues: Iterable[QueueFiles], bounds: ScanBounds = ALL
) -> Iterator[ScanRange]:
    """Yield ranges over the messages of `queues` within bounds, in the order of queues and offsets.
    Over a network several queues are planned at the same time. A queue without expired messages
    that fits in one range is planned without a read. Lost units are separate ranges, whose read
    reports the loss. With time bounds, ranges may contain messages of other times, which the reader
    omits. An exact search for times plans large queues first (see `plan_each`). Raises Corrupt,
    Unavailable."""

    def plan_one(queue: QueueFiles) -> list[ScanRange]:
        with open_queue(provider, queue) as reader:
            return plan_queue(reader, bounds)

    is_part = bounds.narrow and (bounds.from_offset is not None or bounds.until_offset is not None)

    def waits(queue: QueueFiles) -> bool:
        return _needs_search(queue, bounds) or needs_reads(
            queue, range_bytes=bounds.range_bytes, is_part=is_part
        )

    warns = bounds.has_times and bounds.search_times is SearchTimes.EXACT and bounds.leave_search
    yield from plan_each(provider, list(queues), plan_one, warns=warns, waits=waits)


def plan_each(
    provider: SegmentProvider,
    queues: Sequence[QueueFiles],
    plan_one: Callable[[QueueFiles], list[ScanRange]],
    *,
    warns: bool,
    waits: Callable[[QueueFiles], bool],
) -> Iterator[ScanRange]:
    """Yield the ranges of each queue. `warns`: plan the large queues first, and log a warning about
    queues without recorded times. `waits`: returns whether the plan of a queue needs reads. Raises
    the errors of `plan_one`."""
    begun: dict[str, list[ScanRange]] = {}
    if warns:
        large = [queue for queue in queues if not is_read_whole(queue)]
        planned = map_ahead(provider, plan_one, large)
        begun = {queue.path: ranges for queue, ranges in zip(large, planned, strict=True)}
        warn_unrecorded(
            Unrecorded(path, one.count, one.size_bytes)
            for path, ranges in begun.items()
            for one in ranges
            if not one.is_searched
        )

    def plan_rest(queue: QueueFiles) -> list[ScanRange]:
        ranges = begun.get(queue.path)
        return plan_one(queue) if ranges is None else ranges

    def waits_still(queue: QueueFiles) -> bool:
        return queue.path not in begun and waits(queue)

    for ranges in map_ahead(provider, plan_rest, queues, waits=waits_still):
        yield from ranges


def needs_reads(
    queue: QueueFiles, *, range_bytes: int, is_part: bool, has_least: bool = False
) -> bool:
    """Return whether the plan of a queue needs reads, apart from the search for times. `is_part`:
    whether a range may be a part of the queue with only its segments. `has_least`: whether the min
    offset of the queue is already known."""
    starts_late = queue.commit_log_min_offset > 0 and not has_least
    has_segments = len(queue.commit_log) > 1 or len(queue.consume_queue) > 1
    log_bytes = queue.commit_log_max_offset - queue.commit_log_min_offset
    has_holes = len(queue.consume_queue) > 1 and len(queue.unit_spans()) > 1
    return starts_late or (is_part and has_segments) or log_bytes > range_bytes or has_holes


def plan_queue(reader: QueueReader, bounds: ScanBounds = ALL) -> list[ScanRange]:
    """Return the ranges of one queue as `plan` does, with the caller's reader of the queue."""
    queue = reader.queue
    begin, behind = reader.min_offset(), reader.max_offset()
    since_ms, until_ms = bounds.since_ms, bounds.until_ms
    low = max(begin, bounds.from_offset or 0)
    high = behind if bounds.until_offset is None else min(behind, bounds.until_offset)
    lost = find_lost_units(reader)
    wanted = _find_wanted(reader, low, high, bounds, has_lost=bool(lost))
    pieces: list[ScanRange] = []
    for first, last in sorted([*queue.unit_spans(), *lost]):
        for low, high, is_searched in wanted:
            start, end = max(first, low), min(last, high)
            if start < end and (first, last) in lost:
                pieces.append(ScanRange(queue, start, end, 0, since_ms, until_ms))
            elif start < end:
                for piece in _cut_range(reader, start, end, bounds):
                    is_part = piece.from_offset > begin or piece.until_offset < behind
                    needed = _narrow_queue(reader, piece) if bounds.narrow and is_part else queue
                    pieces.append(replace(piece, queue=needed, is_searched=is_searched))
    is_searched = _needs_search(queue, bounds) and any(piece.is_searched for piece in pieces)
    is_read = queue.commit_log_min_offset > 0 or is_searched
    if bounds.has_witness or len(pieces) > 1 or (is_read and not is_read_whole(queue)):
        offsets = [piece.from_offset for piece in pieces if not piece.is_lost]
        witness = take_witness(reader, offsets[0]) if offsets else None
        pieces = [replace(piece, witness=witness) for piece in pieces]
    return pieces


def _find_wanted(
    reader: QueueReader, low: int, high: int, bounds: ScanBounds, *, has_lost: bool
) -> list[tuple[int, int, bool]]:
    """Return the runs of [low, high) that may have messages within the time bounds, each with a
    flag. The flag is False if the reader must still search the run for the exact bounds."""
    queue, since_ms, until_ms = reader.queue, bounds.since_ms, bounds.until_ms
    if not _needs_search(queue, bounds, has_lost=has_lost):
        return [(low, high, _are_within(queue, since_ms, until_ms))]
    if is_read_whole(queue) or has_lost or bounds.search_times is SearchTimes.SAMPLED:
        first, end = narrow_by_time(
            reader, low, high,
            since_ms=since_ms, until_ms=until_ms, search_times=bounds.search_times,
        )  # fmt: skip
        return [(first, end, True)]
    runs = find_runs(reader, low, high, Window(since_ms, until_ms))
    return [(run.start, run.end, run.times is not None or not bounds.leave_search) for run in runs]


def _needs_search(queue: QueueFiles, bounds: ScanBounds, *, has_lost: bool = False) -> bool:
    """Return whether the plan of a queue searches for the times. If not, the reader does, or all
    messages are within the bounds. `has_lost`: whether units of the queue are lost."""
    is_left = bounds.leave_search and is_read_whole(queue) and not has_lost
    return not is_left and not _are_within(queue, bounds.since_ms, bounds.until_ms)


def _are_within(queue: QueueFiles, since_ms: int | None, until_ms: int | None) -> bool:
    """Return whether all messages of a queue are certainly within the time bounds: there are no
    bounds, or the times in the metadata are within them."""
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
    """Return the approximate commit log bytes of the messages [start, end), or None if the queue is
    larger than `most_bytes`."""
    total = queue.commit_log_max_offset - queue.commit_log_min_offset
    units = sum(extent.size_bytes for extent in queue.consume_queue) // UNIT_SIZE
    return None if total > most_bytes else total * (end - start) // max(units, 1)


def _narrow_queue(reader: QueueReader, piece: ScanRange) -> QueueFiles:
    """Return the queue with only the segments of a range. The ends of the range in the commit log
    are computed from several units, because one may be damaged."""
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
    """Return the queue with only the segments that have units of [from_offset, until_offset) or
    commit log bytes [low, high)."""
    low_unit, high_unit = from_offset * UNIT_SIZE, until_offset * UNIT_SIZE
    return replace(
        queue,
        commit_log=_select_within(queue.commit_log, low, high),
        consume_queue=_select_within(queue.consume_queue, low_unit, high_unit),
    )


def _select_within(
    extents: tuple[SegmentExtent, ...], low: int, high: int
) -> tuple[SegmentExtent, ...]:
    """Return the segments with bytes of [low, high), or all segments if there are none, because the
    bounds are then wrong."""
    found = tuple(e for e in extents if e.base_offset < high and e.end_offset > low)
    return found or extents


def _log_bytes(reader: QueueReader, start: int, end: int) -> int:
    first = reader.read_units(start, 1)[0]
    last = reader.read_units(end - 1, 1)[0]
    size = int(last["physical_offset"]) + int(last["size"]) - int(first["physical_offset"])
    # A damaged unit may name any place.
    return min(max(size, 0), sum(extent.size_bytes for extent in reader.queue.commit_log))


def store_time(reader: QueueReader, offset: int) -> int:
    """Return the store time of one message, epoch ms. Raises Corrupt if its unit refers to no
    record, or its head is damaged."""
    unit = reader.read_units(offset, 1)[0]
    size = int(unit["size"])
    if size < MIN_RECORD_SIZE:
        segment, position = reader.unit_place(offset)
        text = "a consume queue unit with an impossible message size"
        expected = f"at least {MIN_RECORD_SIZE}"
        raise damage(
            "unit-invalid", text, segment, position, offset, expected=expected, found=size
        ).to_error()
    found = read_times(reader, offset, 1)
    if found.known[0]:
        return int(found.times[0])
    place = find_message(reader, int(unit["physical_offset"]), size)
    head = reader.commit_log.read(place, MIN_RECORD_SIZE)
    extent = reader.commit_log.extent_at(place)
    assert extent is not None  # as the read found it
    position, expected = place - extent.base_offset, f"size {size} and magic of its unit's message"
    text, bytes_found = "no message here", bytes(head[:BLANK_SIZE]).hex()
    raise damage(
        "record-magic", text, extent.id, position, offset, expected=expected, found=bytes_found
    ).to_error()
