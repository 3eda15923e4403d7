"""Distinction of damage from messages that have expired or were not completely written. Messages
may expire after the read was planned. A crash, or a running write, leaves units without messages at
the end of a queue. Readers skip them without an error, and the writer overwrites them later. A
missing message that the metadata records is damage."""

from __future__ import annotations

import logging
from dataclasses import replace

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.scan.catalogue import QueueFiles, extent_at
from tieredstore.scan.expired import find_lost_segments, first_alive, list_now, make_expired_error
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, OnFinding, Severity, note
from tieredstore.scan.generation import Witness, require_same_generation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import MessageBatch
from tieredstore.scan.read.tail import find_written_end

_log = logging.getLogger(__name__)
_NO_UNIT = "units-missing"
"""Kind of finding for messages that have no unit."""


class Judge:
    """Filters the findings of one range before another `OnFinding` receives them. At the first
    damage the queue is listed again. Raises Expired if the messages have expired or the topic was
    recreated. Units at the end of the queue whose messages were never written become a note."""

    def __init__(self, provider: SegmentProvider, read: ScanRange, on_finding: OnFinding) -> None:
        self._provider = provider
        self._witness = read.witness
        self._is_checked = read.witness is not None
        self._queue = read.queue
        self._on_finding = on_finding
        self._now: QueueFiles | None = None
        self._first = 0
        self._gone: set[SegmentId] = set()
        self._end: int | None = None
        self._has_told_tail = False

    def __call__(self, finding: Finding) -> None:
        """Receive a finding. Raises Expired, Unavailable, and the errors of the next
        `OnFinding`."""
        offset = finding.queue_offset
        if finding.severity is Severity.NOTE or offset is None:
            self._on_finding(finding)
            return
        self._look(offset)
        if offset < self._first or finding.segment in self._gone:
            assert self._now is not None
            raise make_expired_error(self._queue, offset, self._now, self._first)
        end = self._end
        is_unit = finding.kind != _NO_UNIT
        if end is None or offset < max(end, self._queue.recorded_end) or not is_unit:
            self._on_finding(finding)
        elif not self._has_told_tail:
            self._has_told_tail = True
            self._on_finding(_make_tail_note(self._queue, end, finding.segment, finding.position))

    def note(self, batch: MessageBatch) -> None:
        """Record a non-empty batch of the range. Without a witness of the plan, its first message
        becomes the witness."""
        start = int(batch.columns.positions[0])
        extent = extent_at(self._queue.commit_log, batch.base_offset + start)
        self._is_checked = self._witness is not None
        if self._witness is None and extent is not None:
            position = batch.base_offset + start - extent.base_offset
            head = bytes(batch.buffer[start : start + MIN_RECORD_SIZE])
            self._witness = Witness(int(batch.queue_offsets[0]), extent, position, head)

    def check_generation(self) -> None:
        """Raise Expired if the topic was recreated since the plan, or since the first of several
        batches. Raises Unavailable."""
        if self._is_checked:
            require_same_generation(self._provider, self._queue, self._witness)

    def _look(self, offset: int) -> None:
        if self._now is not None:
            return
        require_same_generation(self._provider, self._queue, self._witness)
        now = self._now = list_now(self._provider, self._queue)
        try:
            self._gone = find_lost_segments(self._queue, now)
            if self._gone:
                self._first = first_alive(self._provider, now, offset + 1)
            sizes = {extent.id: extent.size_bytes for extent in now.commit_log}
            if any(one.size_bytes > sizes.get(one.id, 0) for one in self._queue.commit_log):
                return  # it was there
            with QueueReader(self._provider, now) as reader:
                self._end = find_written_end(reader)
        except Corrupt:  # then nothing speaks for the finding being anything else
            return


def cut_unwritten_tail(
    reader: QueueReader, scan_range: ScanRange, on_finding: OnFinding
) -> ScanRange:
    """Remove units without messages from the end of a range at the end of the queue. Units that the
    metadata records are kept. Reads the head of one record. Raises Unavailable."""
    queue, until = reader.queue, scan_range.until_offset
    spans = queue.unit_spans()
    if not spans or until != spans[-1][1] or until <= max(queue.recorded_end, spans[-1][0]):
        return scan_range
    try:
        end = find_written_end(reader)
    except Corrupt:
        return scan_range  # reported when the units are read
    if end is None:
        return scan_range
    end = max(end, queue.recorded_end)
    if end >= until:
        return scan_range
    now = list_now(reader.provider, queue)
    if now.consume_queue_max_offset > until:  # the range ends with a segment, not with the queue
        return scan_range
    on_finding(_make_tail_note(queue, end, *reader.unit_place(end)))
    return replace(scan_range, until_offset=max(end, scan_range.from_offset))


def _make_tail_note(
    queue: QueueFiles, end: int, segment: SegmentId | None, position: int | None
) -> Finding:
    text = f"units from offset {end} on name messages that are not there (yet)"
    _log.warning("%s: %s", queue.path, text)
    return note("tail-unwritten", text, segment, position, end, messages=0)
