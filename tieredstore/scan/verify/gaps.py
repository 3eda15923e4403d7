"""Findings about one queue, and the check of commit log bytes that have no unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.record import decode_record
from tieredstore.scan.catalogue import QueueFiles, extent_at
from tieredstore.scan.extents import QueueReader, is_coda
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.scan.read.batch import Int64s
from tieredstore.scan.read.batches import BATCH_BYTES
from tieredstore.scan.verify.metadata import java_store_times
from tieredstore.scan.verify.outcome import FindingsBox, GapOutcome, SegmentTimes, is_damage

MAX_RECORD_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class VerifyGap:
    """Bytes [low, high) of a queue's log without a unit. `anchor`: queue offset of the message
    after these bytes. Picklable."""

    queue: QueueFiles
    low: int
    high: int
    anchor: int


class QueueFindings:
    """Findings about one queue, the store times in its segments, and the segments whose store times
    are not all known."""

    def __init__(self, queue: QueueFiles) -> None:
        self.queue = queue
        self.box = FindingsBox()
        self._damaged: set[SegmentId] = set()
        self._times: dict[SegmentId, SegmentTimes] = {}

    def add(self, finding: Finding, anchor: int | None = None) -> None:
        if is_damage(finding):
            self._damaged.update(find_touched_segments(self.queue, finding))
        if anchor is None:
            anchor = finding.queue_offset or 0
        self.box.add(anchor, finding)

    def lose_units(self, first: int, last: int) -> None:
        """Record that the times of the messages `first` to `last` are unknown."""
        self._damaged.update(
            extent.id
            for extent in self.queue.consume_queue
            if extent.base_offset <= last * UNIT_SIZE and first * UNIT_SIZE < extent.end_offset
        )

    def times_of(self, segment: SegmentId) -> SegmentTimes:
        return self._times.setdefault(segment, SegmentTimes(int(segment.type), segment.base_offset))

    def check_unnamed(self, reader: QueueReader, low: int, high: int, anchor: int) -> None:
        """Report the content of the bytes [low, high) that have no unit. `anchor`: queue offset for
        the order of the report."""
        for extent in self.queue.commit_log:
            start, end = max(low, extent.base_offset), min(high, extent.end_offset)
            if start >= end or is_coda(reader, start, end):
                continue
            at = start - extent.base_offset
            try:
                messages, is_readable = _walk(reader, start, end, self.times_of(extent.id))
            except Corrupt as error:  # the segment became shorter while it was read
                self.add(damage("bytes-missing", str(error), extent.id, at), anchor)
                continue
            rest = "" if is_readable else " and bytes that are none"
            if not is_readable:  # their times may be in the metadata
                self._damaged.add(extent.id)
            text = (
                f"{end - start} bytes that no consume queue unit names: {messages} messages{rest} "
                "(an interrupted upload leaves such bytes. They are never served)"
            )
            self.add(note("bytes-unnamed", text, extent.id, at), anchor)

    def finish(self, outcome: GapOutcome) -> None:
        outcome.findings = self.box.pack()
        outcome.times = list(self._times.values())
        outcome.damaged = sorted((int(s.type), s.base_offset) for s in self._damaged)


def _walk(reader: QueueReader, low: int, high: int, times: SegmentTimes) -> tuple[int, bool]:
    """Read the bytes [low, high) of one commit log segment, 4 MiB at a time, and add the store
    times of records to `times`. Return the number of whole records, and whether there are no other
    bytes. Raises Corrupt if the segment has become shorter."""
    position, messages, is_readable = low, 0, True
    while position < high:
        window = reader.commit_log.read(position, min(high - position, BATCH_BYTES))
        walk = walk_records(window)
        is_readable &= _add_times(times, window, walk.positions)
        messages += len(walk.positions)
        position += walk.next_position
        if walk.next_position:
            continue
        size = int.from_bytes(window[:4], "big")
        is_large = walk.stop is Stop.CUT and len(window) < size <= high - position
        if not is_large or size > MAX_RECORD_BYTES:
            return messages, False
        messages += 1
        position += size
    return messages, is_readable


def find_touched_segments(queue: QueueFiles, finding: Finding) -> Iterator[SegmentId]:
    """Yield the segments whose store times are not all known because of a finding."""
    if finding.segment is None:
        return
    yield finding.segment
    if finding.queue_offset is not None:
        # The unit's segment has a message less to take its times from.
        unit = extent_at(queue.consume_queue, finding.queue_offset * UNIT_SIZE)
        if unit is not None:
            yield unit.id


def check_gap(provider: SegmentProvider, gap: VerifyGap) -> GapOutcome:
    """Check the bytes of a gap. Raises Unavailable."""
    found = QueueFindings(gap.queue)
    with QueueReader(provider, gap.queue) as reader:
        found.check_unnamed(reader, gap.low, gap.high, gap.anchor)
    outcome = GapOutcome()
    found.finish(outcome)
    return outcome


def _add_times(times: SegmentTimes, window: memoryview, positions: Int64s) -> bool:
    """Add the store times of records to `times`. Return whether all records could be decoded."""
    good: list[int] = []
    found: list[int] = []
    for position in positions.tolist():
        try:
            found.append(decode_record(window, position).store_timestamp_ms)
        except Corrupt:
            continue
        good.append(position)
    if good:
        java = java_store_times(window, np.array(good, dtype=np.int64))
        times.add(np.array(found, dtype=np.int64), java)
    return len(good) == len(positions)
