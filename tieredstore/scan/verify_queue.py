"""Checks one queue: see `verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message import sysflag
from tieredstore.message.columns import properties_of
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.hashes import tags_code
from tieredstore.message.properties import find_text
from tieredstore.scan.batch import MessageBatch, UnitRun
from tieredstore.scan.batches import UNITS_PER_READ, read_run, unit_runs
from tieredstore.scan.catalogue import (
    QueueFiles,
    SegmentExtent,
    TierCatalogue,
    extent_at,
    list_again,
)
from tieredstore.scan.findings import Finding, Report, Severity, damage, note
from tieredstore.scan.java_times import java_store_times
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.reading import QueueReader
from tieredstore.scan.unnamed import look_at_unnamed
from tieredstore.scan.verify_metadata import SegmentTimes, check_metadata

_KNOWN_SYS_FLAGS = (
    sysflag.COMPRESSED
    | sysflag.MULTI_TAGS
    | sysflag.TRANSACTION_MASK
    | sysflag.BORN_HOST_V6
    | sysflag.STORE_HOST_V6
    | sysflag.NEED_UNWRAP
    | sysflag.INNER_BATCH
    | sysflag.COMPRESSION_TYPE_MASK
)
_MAX_RECORD_BYTES = 256 << 20
Progress = Callable[[str, int], None]


@dataclass(slots=True)
class QueueResult:
    """Messages (and their bytes) that are good."""

    messages: int = 0
    message_bytes: int = 0


class QueueVerifier:
    """One run over one queue."""

    def __init__(
        self,
        provider: SegmentProvider,
        catalogue: TierCatalogue,
        queue: QueueFiles,
        report: Report,
        progress: Progress,
    ) -> None:
        self._provider = provider
        self._catalogue = catalogue
        self._queue = queue
        self._report = report
        self._progress = progress
        self._damaged: set[SegmentId] = set()
        self._times: dict[SegmentId, SegmentTimes] = {}
        self._result = QueueResult()
        self._last_time: int | None = None

    def run(self) -> QueueResult:
        """Check everything; findings go to the report."""
        if not self._queue.is_contiguous:
            # Segments of a queue that is written meanwhile may have been listed at two moments.
            now = list_again(self._provider, self._queue)
            self._queue = now if now.is_contiguous else self._queue
        self._check_commit_log_chain()
        self._check_consume_queue_chain()
        with QueueReader(self._provider, self._queue) as reader:
            try:
                self._check_messages(reader)
            except Corrupt as error:
                # A segment that became shorter while it was read.
                self._found(damage("bytes-missing", str(error), queue_offset=error.offset))
        if self._catalogue.metadata is not None:
            with QueueReader(self._provider, self._queue) as reader:
                check_metadata(
                    reader, self._catalogue.metadata, self._times, self._damaged, self._report
                )
        return self._result

    def _found(self, finding: Finding) -> None:
        if finding.severity is Severity.DAMAGE and finding.segment is not None:
            self._damaged.add(finding.segment)
            if finding.queue_offset is not None:
                # The unit's segment has a message less to take its times from.
                unit = extent_at(self._queue.consume_queue, finding.queue_offset * UNIT_SIZE)
                if unit is not None:
                    self._damaged.add(unit.id)
        self._report(finding)

    # Segments

    def _check_commit_log_chain(self) -> None:
        for before, after in pairwise(self._queue.commit_log):
            if before.end_offset < after.base_offset:
                self._found(
                    damage(
                        "segment-truncated",
                        f"commit log segment ends before the next one's start ({after.id})",
                        segment=before.id,
                        position=before.size_bytes,
                        expected=f"{after.base_offset - before.base_offset} bytes",
                        found=f"{before.size_bytes} bytes",
                    )
                )
        self._check_surplus("commit log", self._queue.commit_log)

    def _check_consume_queue_chain(self) -> None:
        for extent in self._queue.consume_queue:
            if extent.base_offset % UNIT_SIZE:
                self._found(
                    damage(
                        "segment-base",
                        "base offset of a consume queue segment",
                        segment=extent.id,
                        expected=f"a multiple of {UNIT_SIZE}",
                        found=str(extent.base_offset),
                    )
                )
            rest = extent.size_bytes % UNIT_SIZE
            if rest:
                self._found(
                    damage(
                        "unit-torn",
                        "the last consume queue unit of the segment is cut",
                        segment=extent.id,
                        position=extent.size_bytes - rest,
                        expected=f"{UNIT_SIZE} bytes",
                        found=f"{rest}",
                    )
                )
        # A hole between segments may be one that the dispatcher left on purpose: see `_check_hole`.
        self._check_surplus("consume queue", self._queue.consume_queue)

    def _check_surplus(self, what: str, extents: tuple[SegmentExtent, ...]) -> None:
        """Bytes behind the next segment's start. Where bytes cannot be written again a writer
        leaves those of another one there, and goes on beside them."""
        is_expected = not self._provider.capabilities.rewritable
        for extent in extents:
            if extent.surplus_bytes:
                finding = note if is_expected else damage
                self._found(
                    finding(
                        "segment-overlap",
                        f"{what} segment goes on behind the next one's start",
                        segment=extent.id,
                        position=extent.size_bytes,
                        expected=f"{extent.size_bytes} bytes",
                        found=f"{extent.size_bytes + extent.surplus_bytes} bytes",
                    )
                )

    # Messages

    def _check_messages(self, reader: QueueReader) -> None:
        spans = self._queue.unit_spans()
        if not spans:
            self._check_unnamed(
                reader, self._queue.commit_log_min_offset, self._queue.commit_log_max_offset
            )
            return
        first = self._first_alive(reader, *spans[0])
        self._check_expired(reader, spans[0][0], first)
        position = self._queue.commit_log_min_offset
        previous_end: int | None = None
        for span_start, end in spans:
            start = max(span_start, first)
            if start >= end:
                continue
            span = ScanRange(self._queue, start, end, 0)
            is_first = True
            for run in unit_runs(reader, span, report=self._found):
                if is_first and previous_end is not None:
                    self._check_hole(previous_end, start, run, position)
                is_first = False
                if run.start > position:
                    self._check_unnamed(reader, position, run.start)
                self._check_run(reader, run, position)
                position = max(position, run.end)
            previous_end = end
        end_of_log = self._queue.commit_log_max_offset
        if position < end_of_log:
            self._check_unnamed(reader, position, end_of_log)

    def _first_alive(self, reader: QueueReader, start: int, end: int) -> int:
        """Where expired units end, by all units of a span: the border that the fewest contradict.
        (A binary search would be led astray by a damaged unit.)"""
        log_start = self._queue.commit_log_min_offset
        if log_start == 0:
            return start
        best, lowest, height = start, 0, 0
        for low in range(start, end, UNITS_PER_READ):
            try:
                units = reader.read_units(low, min(UNITS_PER_READ, end - low))
            except Corrupt:
                continue  # reported where messages are read
            alive = units["physical_offset"].astype(np.int64) >= log_start
            heights = height + np.cumsum(np.where(alive, 1, -1))
            at = int(heights.argmin())
            if int(heights[at]) < lowest:
                best, lowest = low + at + 1, int(heights[at])
            height = int(heights[-1])
        return best

    def _check_expired(self, reader: QueueReader, start: int, end: int) -> None:
        """Units in front of the first message that can be read name only what has expired."""
        for low in range(start, end, UNITS_PER_READ):
            units = reader.read_units(low, min(UNITS_PER_READ, end - low))
            alive = units["physical_offset"].astype(np.int64) >= self._queue.commit_log_min_offset
            for i in np.flatnonzero(alive).tolist():
                segment, at = reader.unit_place(low + i)
                self._found(
                    damage(
                        "unit-order",
                        "a unit among those of expired messages names a message that is there",
                        segment=segment,
                        position=at,
                        queue_offset=low + i,
                        expected=f"less than {self._queue.commit_log_min_offset}",
                        found=str(int(units["physical_offset"][i])),
                    )
                )

    def _check_hole(self, before: int, after: int, run: UnitRun, position: int) -> None:
        """A hole in the queue offsets: left by the dispatcher, or a lost consume queue segment."""
        extent = extent_at(self._queue.consume_queue, after * UNIT_SIZE)
        segment = None if extent is None else extent.id
        if run.start == position:
            self._found(
                note(
                    "queue-hole",
                    f"messages {before} to {after - 1} were never uploaded: the broker had deleted "
                    "them before",
                    segment=segment,
                    queue_offset=before,
                )
            )
        else:
            self._found(
                damage(
                    "units-missing",
                    f"no consume queue segment has the units of messages {before} to {after - 1}",
                    segment=segment,
                    queue_offset=before,
                    expected=f"a segment from byte {before * UNIT_SIZE}",
                    found=f"the next one from byte {after * UNIT_SIZE}",
                )
            )

    def _check_run(self, reader: QueueReader, run: UnitRun, position: int) -> None:
        self._progress(self._queue.path, run.end - run.start)
        previous_ends = np.concatenate(([position], (run.offsets + run.sizes)[:-1]))
        overlaps = np.flatnonzero(run.offsets < previous_ends)
        for i in overlaps.tolist():
            segment, at = reader.unit_place(int(run.queue_offsets[i]))
            self._found(
                damage(
                    "unit-overlap",
                    "consume queue unit of bytes that belong to the message before",
                    segment=segment,
                    position=at,
                    queue_offset=int(run.queue_offsets[i]),
                    expected=f"at least {int(previous_ends[i])}",
                    found=str(int(run.offsets[i])),
                )
            )
        batch = read_run(reader, run, self._found)
        if batch is not None:
            self._result.messages += len(batch)
            self._result.message_bytes += batch.stored_bytes
            self._check_batch(reader, batch)
            self._check_gaps(reader, run)

    def _check_gaps(self, reader: QueueReader, run: UnitRun) -> None:
        ends = (run.offsets + run.sizes)[:-1]
        for i in np.flatnonzero(run.offsets[1:] > ends).tolist():
            self._check_unnamed(reader, int(ends[i]), int(run.offsets[i + 1]))

    def _check_batch(self, reader: QueueReader, batch: MessageBatch) -> None:
        columns = batch.columns
        java_times = java_store_times(batch.buffer, columns.positions)
        segment = self._segment_of(batch.base_offset)
        if segment is not None:
            self._segment_times(segment.id).add(columns.store_timestamps, java_times)
        for extent in self._queue.consume_queue:
            low, high = extent.base_offset // UNIT_SIZE, extent.end_offset // UNIT_SIZE
            if int(batch.queue_offsets[0]) < high and int(batch.queue_offsets[-1]) >= low:
                inside = (batch.queue_offsets >= low) & (batch.queue_offsets < high)
                self._segment_times(extent.id).add(
                    columns.store_timestamps[inside], java_times[inside]
                )
        self._check_sys_flags(batch)
        self._check_time_order(batch)
        for row, properties in enumerate(properties_of(batch.buffer, columns)):
            expected = tags_code(find_text(properties, b"TAGS"))
            found = int(batch.tags_codes[row])
            if found != expected:
                queue_offset = int(batch.queue_offsets[row])
                unit_segment, at = reader.unit_place(queue_offset)
                self._found(
                    damage(
                        "unit-tags-code",
                        "tags code of the unit is not the hash of the message's TAGS",
                        segment=unit_segment,
                        position=None if at is None else at + 12,
                        queue_offset=queue_offset,
                        expected=str(expected),
                        found=str(found),
                    )
                )

    def _check_sys_flags(self, batch: MessageBatch) -> None:
        flags = batch.columns.sys_flags
        unknown = (flags & ~_KNOWN_SYS_FLAGS) != 0
        compressed = (flags & sysflag.COMPRESSED) != 0
        for row in np.flatnonzero(unknown | compressed).tolist():
            message = batch.message(row)
            reason = ""
            if unknown[row]:
                reason = "unknown bits"
            else:
                try:
                    message.decoded_body(_MAX_RECORD_BYTES)
                except Corrupt as error:
                    reason = f"the body does not decompress ({error})"
            if reason:
                self._found(
                    damage(
                        "record-sys-flag",
                        f"sysFlag: {reason}",
                        queue_offset=message.queue_offset,
                        expected="the flags of this body",
                        found=f"{message.sys_flag:#x}",
                        **self._place(batch, row, 36),
                    )
                )

    def _check_time_order(self, batch: MessageBatch) -> None:
        times = batch.columns.store_timestamps
        before = np.empty_like(times)
        before[1:] = times[:-1]
        before[0] = times[0] if self._last_time is None else self._last_time
        for row in np.flatnonzero(times < before).tolist():
            self._found(
                note(
                    "store-time-order",
                    "store time is before that of the message in front; a clock that was set back, "
                    "or a damaged field",
                    queue_offset=int(batch.queue_offsets[row]),
                    expected=f"at least {int(before[row])}",
                    found=str(int(times[row])),
                    **self._place(batch, row, 56),
                )
            )
        self._last_time = int(times[-1])

    def _place(self, batch: MessageBatch, row: int, field_position: int) -> dict[str, object]:
        extent = self._segment_of(batch.base_offset)
        if extent is None:
            return {}
        position = batch.base_offset - extent.base_offset + int(batch.columns.positions[row])
        return {"segment": extent.id, "position": position + field_position}

    def _segment_of(self, offset: int) -> SegmentExtent | None:
        return extent_at(self._queue.commit_log, offset)

    def _segment_times(self, segment: SegmentId) -> SegmentTimes:
        return self._times.setdefault(segment, SegmentTimes())

    def _check_unnamed(self, reader: QueueReader, start: int, end: int) -> None:
        for extent in self._queue.commit_log:
            low, high = max(start, extent.base_offset), min(end, extent.end_offset)
            if low < high:
                unnamed = look_at_unnamed(reader, extent, low, high, self._segment_times(extent.id))
                if not unnamed.is_readable:
                    # Their times may be in the metadata, and nobody can tell them.
                    self._damaged.add(extent.id)
                if not unnamed.is_coda:
                    self._found(unnamed.finding(extent, low, high))
