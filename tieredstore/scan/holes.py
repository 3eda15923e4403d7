"""Queue offsets without consume queue units: holes that the dispatcher left, and lost units.

A broker that deleted messages before they were uploaded leaves a hole: nothing is lost in the tier,
and its commit log goes on without a gap. Units are lost where the metadata speaks of a segment that
has them, or where the commit log has bytes that they must have named. `verify` and all readers
judge by what stands here. What has expired is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles, extent_at
from tieredstore.scan.codas import find_message, is_coda
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.scan.intervals import Interval, add_interval


def find_lost_units(reader: QueueReader) -> list[Interval]:
    """Find the runs of queue offsets [from, until) whose units are lost, in rising order.

    Reads two units for each hole, none for a queue without holes. Raises Corrupt, Unavailable.
    """
    queue = reader.queue
    known, lost = queue.lost_units(), list[Interval]()
    spans = queue.unit_spans()
    for (_, before), (after, _) in pairwise(spans):
        if any(low < after and before < high for low, high in known):
            continue  # the metadata tells what of it is lost
        if not _is_left_by_dispatcher(reader, before, after):
            known.append((before, after))
    alive = reader.min_offset() if known else 0
    for low, high in sorted(known):
        if high > alive:
            add_interval(lost, max(low, alive), high)
    return lost


def _is_left_by_dispatcher(reader: QueueReader, before: int, after: int) -> bool:
    """Whether the commit log has nothing between the messages beside the hole [before, after), or
    it has expired."""
    log_start = reader.queue.commit_log_min_offset
    last, first = reader.read_units(before - 1, 1)[0], reader.read_units(after, 1)[0]
    start = int(first["physical_offset"])
    if start <= log_start:
        return True
    last_begin = find_message(reader, int(last["physical_offset"]))
    end = max(last_begin + int(last["size"]), log_start)
    return start == end or is_coda(reader, end, start)


def find_log_gaps(queue: QueueFiles) -> Iterator[Finding]:
    """Find the commit log segments behind which bytes are missing."""
    for before, after in pairwise(queue.commit_log):
        if before.end_offset < after.base_offset:
            yield damage(
                "segment-truncated",
                f"commit log segment ends before the next one's start ({after.id})",
                segment=before.id,
                position=before.size_bytes,
                expected=f"{after.base_offset - before.base_offset} bytes",
                found=f"{before.size_bytes} bytes",
            )


def make_hole_finding(queue: QueueFiles, before: int, after: int) -> Finding:
    """Note that the messages [before, after) never came into the tier."""
    extent = extent_at(queue.consume_queue, after * UNIT_SIZE)
    return note(
        "queue-hole",
        f"messages {before} to {after - 1} were never uploaded: the broker had deleted them before",
        segment=None if extent is None else extent.id,
        queue_offset=before,
        messages=after - before,
    )


def make_lost_finding(queue: QueueFiles, before: int, after: int) -> Finding:
    """Tell that the units of the messages [before, after) are lost, with the name of the segment
    that must have had the first of them."""
    low, high = before * UNIT_SIZE, after * UNIT_SIZE
    name = SegmentId(queue.path, FileSegmentType.CONSUME_QUEUE, low)
    for extent in queue.consume_queue:
        if extent.base_offset <= low < extent.base_offset + extent.recorded_bytes:
            name = extent.id
    later = [e.base_offset for e in queue.consume_queue if e.base_offset >= high and e.size_bytes]
    found = f"the next one from byte {later[0]}" if later else "none behind it"
    return damage(
        "units-missing",
        f"no consume queue segment has the units of messages {before} to {after - 1}",
        segment=name,
        queue_offset=before,
        expected=f"a segment from byte {low}",
        found=found,
        messages=after - before,
    )
