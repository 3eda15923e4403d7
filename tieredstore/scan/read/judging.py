"""Distinction of damage from messages that have expired or were not completely written. Messages
may expire after the read was planned. A crash, or a running write, leaves units without messages at
the end of a queue. Readers skip them without an error, and the writer overwrites them later. A
missing message that the metadata records is damage."""

from __future__ import annotations

import logging
from dataclasses import replace

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.layout import MIN_RECORD_SIZE, identify
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import Generation, QueueFiles, Witness, extent_at
from tieredstore.scan.expired import find_lost_segments, first_alive, list_now, make_expired_error
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, OnFinding, Severity, note
from tieredstore.scan.generation import is_still_there, take_witness
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import MessageBatch
from tieredstore.scan.read.tail import find_written_end

_log = logging.getLogger(__name__)
_NO_UNIT = "units-missing"
"""Kind of finding for messages that have no unit."""


class Judge:
    """Filters the findings of one range before they reach another `OnFinding`. At the first damage
    the queue is listed again. If the damaged messages have expired, or the topic was recreated,
    raises Expired. Units at the end of the queue whose messages were never written become a
    note. In a tier of files, every batch is compared with the last message that was read of the
    topic before the batch is delivered."""

    def __init__(self, provider: SegmentProvider, read: ScanRange, on_finding: OnFinding) -> None:
        self._provider = provider
        self._queue = read.queue
        self._is_local = not waits_for_network(provider)
        self._planned: Witness | None = None
        self._generation = Generation(read.witness)
        if self._is_local:
            self._planned, self._generation = read.witness, read.queue.generation
        self._is_due = read.witness is not None
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

    def begin(self, reader: QueueReader, offset: int, *, is_large: bool = False) -> None:
        """Take the message at a queue offset as the witness of later reads, unless there is one.
        Over a network, this is done only for a range of units that is read in several pieces
        (`is_large`). Raises Unavailable."""
        has_witness = (self._planned or self._generation.witness) is not None
        if not has_witness and (is_large or self._is_local):
            self._generation.witness = take_witness(reader, offset)

    def note_units(self) -> None:
        """Record that units were read, whose messages may not be read."""
        self._is_due |= self._is_local

    def note(self, batch: MessageBatch | None = None) -> None:
        """Record a non-empty batch, or units, before they are delivered. In a tier of files, raises
        the errors of `check_generation`. The first message of the batch then is the next witness.
        Over a network the first batch has the witness, and the caller checks at the end."""
        if self._is_local:
            self._is_due = True
            self.check_generation()
        else:
            self._is_due = self._generation.witness is not None
        if batch is None or (self._is_due and not self._is_local):
            return
        start = int(batch.columns.positions[0])
        extent = extent_at(self._queue.commit_log, batch.base_offset + start)
        if extent is not None:
            head = batch.buffer[start : start + MIN_RECORD_SIZE]
            self._generation.witness = Witness(extent, *identify(head))
            self._planned = None

    def check_generation(self) -> None:
        """Raise Expired if the topic was recreated since the plan, or since earlier reads of the
        topic. No-op if nothing was read since the last check. Raises Unavailable."""
        if self._is_due:
            self._compare()

    def _compare(self) -> None:
        provider, generation = self._provider, self._generation
        if self._planned is not None and not is_still_there(provider, self._planned):
            self._planned = None
        if generation.witness is not None and not is_still_there(provider, generation.witness):
            generation.witness = None
        self._is_due = False

    def _look(self, offset: int) -> None:
        if self._now is not None:
            return
        self._compare()
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
