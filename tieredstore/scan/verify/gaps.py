"""Findings about one queue, and bytes of its commit log that no unit names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles, extent_at
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, damage
from tieredstore.scan.verify.metadata import SegmentTimes
from tieredstore.scan.verify.outcome import (
    FindingsBox,
    GapOutcome,
    RangeOutcome,
    is_damage,
    make_times_seen,
)
from tieredstore.scan.verify.unnamed_bytes import look_at_unnamed_bytes


@dataclass(frozen=True, slots=True)
class VerifyGap:
    """Bytes [low, high) of a queue's commit log that no unit names; anchor: the queue offset
    behind them. Picklable."""

    queue: QueueFiles
    low: int
    high: int
    anchor: int


class QueueFindings:
    """Findings about one queue, the times of its segments, and which of them are not complete."""

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
        """Note messages of which nobody can tell the times."""
        self._damaged.update(
            extent.id
            for extent in self.queue.consume_queue
            if extent.base_offset <= last * UNIT_SIZE and first * UNIT_SIZE < extent.end_offset
        )

    def times_of(self, segment: SegmentId) -> SegmentTimes:
        return self._times.setdefault(segment, SegmentTimes())

    def look_at(self, reader: QueueReader, low: int, high: int, anchor: int) -> None:
        """Find out what the bytes [low, high), which no unit names, are."""
        for extent in self.queue.commit_log:
            start, end = max(low, extent.base_offset), min(high, extent.end_offset)
            if start >= end:
                continue
            try:
                unnamed_bytes = look_at_unnamed_bytes(reader, start, end, self.times_of(extent.id))
            except Corrupt as error:
                # The segment became shorter while it was read.
                at = start - extent.base_offset
                self.add(
                    damage("bytes-missing", str(error), segment=extent.id, position=at), anchor
                )
                continue
            if not unnamed_bytes.is_readable:
                # Their times may be in the metadata, and nobody can tell them.
                self._damaged.add(extent.id)
            if not unnamed_bytes.is_coda:
                self.add(unnamed_bytes.finding(extent, start, end), anchor)

    def finish(self, outcome: RangeOutcome | GapOutcome) -> None:
        outcome.findings = self.box.pack()
        outcome.times = [make_times_seen(segment, times) for segment, times in self._times.items()]
        outcome.damaged = sorted((int(s.type), s.base_offset) for s in self._damaged)


def find_touched_segments(queue: QueueFiles, finding: Finding) -> Iterator[SegmentId]:
    """Find the segments whose times are not all known for that damage."""
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
        found.look_at(reader, gap.low, gap.high, gap.anchor)
    outcome = GapOutcome()
    found.finish(outcome)
    return outcome
