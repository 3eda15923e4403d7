"""Missing consume queue units: holes that the dispatcher left, and lost units. A broker that
deleted messages before their upload leaves a hole. The commit log of the tier continues there
without a gap. Units are lost if the metadata lists a segment for them, or if the commit log has
bytes of their messages. Expired messages are neither. `verify` and all readers use these rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import Interval, QueueFiles, add_interval, extent_at
from tieredstore.scan.extents import QueueReader, find_message, is_coda
from tieredstore.scan.findings import Finding, damage, note


def find_lost_units(reader: QueueReader) -> list[Interval]:
    """Return the ranges of queue offsets [from, until) whose units are lost, in ascending order.
    Reads two units per hole. Raises Corrupt, Unavailable."""
    queue = reader.queue
    known, lost = queue.lost_units(), list[Interval]()
    spans = queue.unit_spans()
    for (_, before), (after, _) in pairwise(spans):
        if any(low < after and before < high for low, high in known):
            continue  # the metadata has the lost part
        if not _is_left_by_dispatcher(reader, before, after):
            known.append((before, after))
    alive = reader.min_offset() if known else 0
    for low, high in sorted(known):
        if high > alive:
            add_interval(lost, max(low, alive), high)
    return lost


def _is_left_by_dispatcher(reader: QueueReader, before: int, after: int) -> bool:
    """Return whether the messages before and after a hole are adjacent in the commit log, apart
    from expired bytes."""
    log_start = reader.queue.commit_log_min_offset
    last, first = reader.read_units(before - 1, 1)[0], reader.read_units(after, 1)[0]
    start = int(first["physical_offset"])
    if start <= log_start:
        return True
    last_begin = find_message(reader, int(last["physical_offset"]))
    end = max(last_begin + int(last["size"]), log_start)
    return start == end or is_coda(reader, end, start)


def find_log_gaps(queue: QueueFiles) -> Iterator[Finding]:
    """Yield a finding for each commit log segment after which bytes are missing."""
    for before, after in pairwise(queue.commit_log):
        if before.end_offset < after.base_offset:
            yield damage(
                "segment-truncated",
                f"commit log segment ends before the next one's start ({after.id})",
                before.id,
                before.size_bytes,
                expected=f"{after.base_offset - before.base_offset} bytes",
                found=f"{before.size_bytes} bytes",
            )


def make_hole_finding(queue: QueueFiles, before: int, after: int) -> Finding:
    """Return a note that messages [before, after) of a queue never reached the tier."""
    extent = extent_at(queue.consume_queue, after * UNIT_SIZE)
    return note(
        "queue-hole",
        f"messages {before} to {after - 1} were never uploaded: the broker had deleted them before",
        None if extent is None else extent.id,
        queue_offset=before,
        messages=after - before,
    )


def make_lost_finding(queue: QueueFiles, before: int, after: int) -> Finding:
    """Return a finding that units [before, after) of a queue are lost. It names the segment that
    must have contained the first of them."""
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
        name,
        queue_offset=before,
        expected=f"a segment from byte {low}",
        found=found,
        messages=after - before,
    )
