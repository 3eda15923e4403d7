"""Checks many small queues at once.

What is wrong with a queue, a check of it alone tells (`range`): here it is only found which ones
need that. Sound ones, nearly all of a tier, then cost two reads each and a share of a few columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.message.columns.tags_codes import compute_tags_codes
from tieredstore.message.layout import STORE_TIMESTAMP_POSITION
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import BATCH_ROWS
from tieredstore.scan.read.joined import MOST_BYTES, JoinedBatch, group_small, read_joined
from tieredstore.scan.verify.java_times import java_store_times
from tieredstore.scan.verify.outcome import Coverage, RangeOutcome, TimeAt, TimesSeen
from tieredstore.scan.verify.range import CHECKED_SYS_FLAGS, Progress, VerifyRange
from tieredstore.scan.verify.topic_probes import make_probes


def check_joined(
    provider: SegmentProvider, ranges: Sequence[VerifyRange], progress: Progress
) -> list[RangeOutcome | None]:
    """Check the ranges that are small queues, whole; None for those in which something may be
    wrong, and for all others. Over a network, where a queue may be one request, that is all of
    them. Raises Unavailable."""
    outcomes: list[RangeOutcome | None] = [None] * len(ranges)
    if waits_for_network(provider):
        return outcomes
    small = [number for number, one in enumerate(ranges) if _is_small_queue(one)]
    places = iter(small)
    scans = [
        ScanRange(one.queue, one.from_offset, one.until_offset, one.size_bytes)
        for one in map(ranges.__getitem__, small)
    ]
    for group in group_small(scans):
        numbers = [next(places) for _ in group]
        sound, batch = read_joined(provider, group)
        if batch is None:
            continue
        kept = [number for number, is_sound in zip(numbers, sound, strict=True) if is_sound]
        checked = [ranges[number] for number in kept]
        for number, outcome in zip(kept, _judge(checked, batch), strict=True):
            if outcome is not None:
                progress(ranges[number].queue.path, outcome.message_bytes)
                outcomes[number] = outcome
    return outcomes


def _is_small_queue(one: VerifyRange) -> bool:
    """Whether a range is all there is of a queue, in one segment of each kind."""
    queue = one.queue
    return (
        one.size_bytes <= MOST_BYTES
        and 0 < one.until_offset - one.from_offset <= BATCH_ROWS
        and one.expired_from == one.from_offset == one.span_start
        and one.until_offset == one.span_end
        and len(queue.commit_log) == len(queue.consume_queue) == 1
    )


def _judge(ranges: Sequence[VerifyRange], batch: JoinedBatch) -> Iterator[RangeOutcome | None]:
    """What the check of each range comes to; None where there is something to tell."""
    columns, counts = batch.columns, batch.counts
    lasts = np.cumsum(counts) - 1
    firsts = lasts - counts + 1
    times = java_times = columns.store_timestamps
    if not columns.is_v4:
        java_times = java_store_times(batch.buffer, columns.positions)
    good = compute_tags_codes(batch.buffer, columns) == batch.tags_codes
    good &= (columns.sys_flags & CHECKED_SYS_FLAGS) == 0
    is_later = times[1:] >= times[:-1]
    is_later[firsts[1:] - 1] = True
    good[1:] &= is_later
    offsets = columns.physical_offsets
    rows = zip(
        ranges,
        np.logical_and.reduceat(good, firsts).tolist(),
        firsts.tolist(),
        counts.tolist(),
        columns.positions[firsts].tolist(),
        offsets[firsts].tolist(),
        (offsets[lasts] + columns.sizes[lasts]).tolist(),
        times[firsts].tolist(),
        times[lasts].tolist(),
        np.minimum.reduceat(java_times, firsts).tolist(),
        np.maximum.reduceat(java_times, firsts).tolist(),
        strict=True,
    )
    for one, is_good, row, count, position, start, end, low, high, java_low, java_high in rows:
        [log], [units] = one.queue.commit_log, one.queue.consume_queue
        if not is_good or (start, end) != (log.base_offset, log.end_offset):
            yield None
            continue
        outcome = RangeOutcome(count, end - start)
        outcome.times = [
            TimesSeen(int(extent.id.type), extent.base_offset, low, high, java_low, java_high)
            for extent in (log, units)
        ]
        outcome.coverage = Coverage([], start, one.from_offset, end, [])
        outcome.first_time = TimeAt(low, one.from_offset, start, STORE_TIMESTAMP_POSITION)
        outcome.last_time = high
        if one.with_probes:
            base, mine = start - position, range(row, row + count)
            outcome.probes += make_probes(one.queue.topic, batch.buffer, base, columns, mine)
        yield outcome
