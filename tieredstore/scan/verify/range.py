"""Check of the messages of one range of a queue against their units. It reads no other range,
except for the unit just before. Bytes between ranges are checked afterwards (`queue.Assembly`), so
the findings do not depend on the division of a queue into ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message import sysflag
from tieredstore.message.columns.tags_codes import compute_tags_codes
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import STORE_TIMESTAMP_POSITION
from tieredstore.scan.catalogue import (
    Interval,
    QueueFiles,
    SegmentExtent,
    add_interval,
    extent_at,
    subtract_intervals,
)
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, OnFinding, damage, note
from tieredstore.scan.read import batches
from tieredstore.scan.read.batch import Int64s, MessageBatch, UnitRun
from tieredstore.scan.verify.gaps import MAX_RECORD_BYTES, QueueFindings
from tieredstore.scan.verify.metadata import TimesComparison, java_store_times
from tieredstore.scan.verify.outcome import RangeOutcome, TimeAt
from tieredstore.scan.verify.topic_probes import make_probes
from tieredstore.scan.verify.units import BadUnits, blocks, read_blocks

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
CHECKED_SYS_FLAGS = ~_KNOWN_SYS_FLAGS | sysflag.COMPRESSED
Progress = Callable[[str, int], None]
"""Function that is called with the path of a queue or segment and the number of bytes that were
just checked."""


@dataclass(frozen=True, slots=True)
class VerifyRange:
    """Units [from, until) of a queue, within a contiguous span [span_start, span_end). Picklable.
    `expired_from`: units [expired_from, from) refer to expired messages, and are checked too.
    `size_bytes`: approximate commit log bytes. `with_probes`: also return probes for finding topic
    ids (`topic_probes`)."""

    queue: QueueFiles
    from_offset: int
    until_offset: int
    span_start: int
    span_end: int
    expired_from: int
    size_bytes: int
    with_probes: bool = True


class RangeVerifier:
    """Verification of one range."""

    def __init__(self, provider: SegmentProvider, range: VerifyRange, progress: Progress) -> None:
        self._provider = provider
        self._range = range
        self._queue = range.queue
        self._progress = progress
        self._found = QueueFindings(range.queue)
        self._outcome = RangeOutcome()
        self._loose: list[Interval] = []
        """Bytes that the units after the last good message refer to."""
        self._previous: tuple[int, int] | None = None
        """Queue offset of the last checked unit, and the end of the bytes to which it refers."""

    def run(self) -> RangeOutcome:
        """Check the whole range. Raises Unavailable."""
        outcome, coverage = self._outcome, self._outcome.coverage
        with (
            QueueReader(self._provider, self._queue) as reader,
            QueueReader(self._provider, self._queue) as looker,  # `reader` may be reading ahead
        ):
            self._check_expired(reader)
            self._look_back(reader)
            recorded = TimesComparison(looker)
            for run, load in batches.load_runs(
                self._provider, reader, lambda tell: self._runs(reader, tell), self._found.add
            ):
                self._progress(self._queue.path, run.end - run.start)
                batch = batches.read_checked_run(reader, run, load, self._found.add)
                self._cover(looker, run, batch)
                if batch is not None:
                    outcome.messages += len(batch)
                    outcome.message_bytes += batch.stored_bytes
                    self._check_batch(reader, batch)
                    # Wrong records of times: the messages are not damaged.
                    if (segment := self._segment_of(batch)) is not None:
                        for finding in recorded.check(batch, segment):
                            self._found.box.add(finding.queue_offset or 0, finding)
                del batch  # the next read may then have its memory
        if coverage.head_start is None:
            coverage.head = self._loose
        else:
            coverage.tail = self._loose
        self._found.finish(outcome)
        return outcome

    # Units

    def _check_expired(self, reader: QueueReader) -> None:
        """Check that units before the first message refer only to expired messages."""
        log_start = self._queue.commit_log_min_offset
        start, end = self._range.expired_from, self._range.from_offset
        for low, units in read_blocks(reader, start, end, self._found.add, self._found.lose_units):
            alive = units["physical_offset"].astype(np.int64) >= log_start
            for i in np.flatnonzero(alive).tolist():
                segment, at = reader.unit_place(low + i)
                self._found.add(
                    damage(
                        "unit-order",
                        "a unit among those of expired messages names a message that is there",
                        segment,
                        at,
                        low + i,
                        expected=f"less than {log_start}",
                        found=int(units["physical_offset"][i]),
                    )
                )

    def _look_back(self, reader: QueueReader) -> None:
        """Read the unit just before the range, to check that the first unit does not overlap it.
        Another range checks that unit itself."""
        before = self._range.from_offset - 1
        if before < self._range.span_start:
            return
        try:
            units = reader.read_units(before, 1)
        except Corrupt:
            return  # reported by the other one
        found, usable = batches.find_usable_units(reader, units, before)
        # Of units that name nothing, the range of the first one tells.
        self._previous = (before, found.end) if usable[0] else (before, -1)

    def _runs(self, reader: QueueReader, tell: OnFinding) -> Iterator[UnitRun]:
        bad = BadUnits(reader, tell, self._found.lose_units)
        if self._previous is not None and self._previous[1] < 0:
            bad.begin_before(self._previous[0])
        start, end = self._range.from_offset, self._range.until_offset
        for low, units in read_blocks(reader, start, end, tell, self._found.lose_units):
            found, usable = batches.find_usable_units(reader, units, low)
            if not usable.all():
                bad.add(found, usable)
                found = found.take(usable)
            yield from batches.runs_of_units(reader.queue, found, batches.BATCH_BYTES)
        # A run of bad units that continues behind the range is reported here.
        for low, count in blocks(self._range.until_offset, self._range.span_end):
            if not bad.is_open or bad.last != low - 1:
                break
            try:
                found, usable = batches.find_usable_units(
                    reader, reader.read_units(low, count), low
                )
            except Corrupt:
                break
            stop = int(usable.argmax()) if usable.any() else len(usable)
            if stop == 0:
                break
            bad.add(found.take(slice(0, stop)), usable[:stop])
        bad.tell()

    # Places

    def _cover(self, reader: QueueReader, run: UnitRun, batch: MessageBatch | None) -> None:
        """Record the bytes to which the units of a run refer. Check bytes without units between
        good messages."""
        ends = run.offsets + run.sizes
        good: npt.NDArray[np.intp]
        if batch is None:
            good = np.empty(0, np.intp)
        elif len(batch) == len(run.offsets):
            good = np.arange(len(run.offsets))
        else:
            good = np.searchsorted(run.queue_offsets, batch.queue_offsets)
        self._check_overlap(reader, run, not len(good) or int(good[0]) > 0)
        self._previous = int(run.queue_offsets[-1]), int(ends[-1])
        if not len(good):
            self._found.lose_units(int(run.queue_offsets[0]), int(run.queue_offsets[-1]))
            self._loosen(run.offsets, ends)
            return
        coverage = self._outcome.coverage
        first, last = int(good[0]), int(good[-1])
        self._loosen(run.offsets[:first], ends[:first])
        start, offset = int(run.offsets[first]), int(run.queue_offsets[first])
        if coverage.head_start is None:
            coverage.head, coverage.head_start = self._loose, start
            coverage.head_offset = offset
        else:
            self._look_between(reader, coverage.tail_end, start, offset)
        for i in np.flatnonzero(run.offsets[good[1:]] > ends[good[:-1]]).tolist():
            before, after = int(good[i]), int(good[i + 1])
            self._loose = []
            self._loosen(run.offsets[before + 1 : after], ends[before + 1 : after])
            self._look_between(
                reader, int(ends[before]), int(run.offsets[after]), int(run.queue_offsets[after])
            )
        self._loose = []
        self._loosen(run.offsets[last + 1 :], ends[last + 1 :])
        coverage.tail_end = int(ends[last])

    def _loosen(self, starts: Int64s, ends: Int64s) -> None:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            add_interval(self._loose, start, end)

    def _look_between(self, reader: QueueReader, low: int, high: int, anchor: int) -> None:
        for start, end in subtract_intervals(low, high, self._loose):
            self._found.check_unnamed(reader, start, end, anchor)

    def _check_overlap(self, reader: QueueReader, run: UnitRun, is_first_bad: bool) -> None:
        """Report a unit at the start of a run that overlaps the previous unit. If its message is
        intact, the previous unit is wrong, and nothing is reported here."""
        previous, offset = self._previous, int(run.queue_offsets[0])
        if previous is None or not is_first_bad or previous[0] != offset - 1:
            return
        if run.start < previous[1]:
            segment, at = reader.unit_place(offset)
            text = "consume queue unit of bytes that belong to the message before"
            expected = f"at least {previous[1]}"
            self._found.add(
                damage(
                    "unit-overlap", text, segment, at, offset, expected=expected, found=run.start
                )
            )

    # Messages

    def _check_batch(self, reader: QueueReader, batch: MessageBatch) -> None:
        columns = batch.columns
        times = java_times = columns.store_timestamps
        if not columns.is_v4:
            java_times = java_store_times(batch.buffer, columns.positions)
        segment = self._segment_of(batch)
        if segment is not None:
            self._found.times_of(segment.id).add(times, java_times)
        for extent in self._queue.consume_queue:
            borders = extent.base_offset // UNIT_SIZE, extent.end_offset // UNIT_SIZE
            low, high = np.searchsorted(batch.queue_offsets, borders).tolist()
            if low < high:
                self._found.times_of(extent.id).add(times[low:high], java_times[low:high])
        if self._range.with_probes:
            self._outcome.probes += make_probes(
                self._queue.topic, batch.buffer, batch.base_offset, columns, range(len(batch))
            )
        self._check_sys_flags(batch)
        self._check_time_order(batch)
        self._check_tags(reader, batch)

    def _check_tags(self, reader: QueueReader, batch: MessageBatch) -> None:
        expected = compute_tags_codes(batch.buffer, batch.columns)
        for row in np.flatnonzero(batch.tags_codes != expected).tolist():
            queue_offset = int(batch.queue_offsets[row])
            segment, at = reader.unit_place(queue_offset)
            self._found.add(
                damage(
                    "unit-tags-code",
                    "tags code of the unit is not the hash of the message's TAGS",
                    segment,
                    None if at is None else at + 12,
                    queue_offset,
                    expected=int(expected[row]),
                    found=int(batch.tags_codes[row]),
                )
            )

    def _check_sys_flags(self, batch: MessageBatch) -> None:
        sys_flags = batch.columns.sys_flags
        if not (sys_flags & CHECKED_SYS_FLAGS).any():
            return
        unknown = (sys_flags & ~_KNOWN_SYS_FLAGS) != 0
        compressed = (sys_flags & sysflag.COMPRESSED) != 0
        for row in np.flatnonzero(unknown | compressed).tolist():
            message, reason = batch.message(row), "unknown bits"
            if not unknown[row]:
                try:
                    message.decode_body(MAX_RECORD_BYTES)
                    continue
                except Corrupt as error:
                    # The place in this buffer means nothing to a reader.
                    what = str(error).partition(": ")[2]
                    reason = f"the body does not decompress ({what})"
            place, text = self._place(batch, row, 36), f"sysFlag: {reason}"
            right, flags = "the flags of this body", f"{message.sys_flag:#x}"
            offset = message.queue_offset
            self._found.add(
                damage("record-sys-flag", text, *place, offset, expected=right, found=flags)
            )

    def _check_time_order(self, batch: MessageBatch) -> None:
        times, outcome = batch.columns.store_timestamps, self._outcome
        before = np.empty_like(times)
        before[1:] = times[:-1]
        before[0] = times[0] if outcome.last_time is None else outcome.last_time
        if outcome.first_time is None:
            outcome.first_time = self._time_at(batch, 0)
        for row in np.flatnonzero(times < before).tolist():
            self._found.add(
                time_order_finding(self._queue, self._time_at(batch, row), int(before[row]))
            )
        outcome.last_time = int(times[-1])

    def _time_at(self, batch: MessageBatch, row: int) -> TimeAt:
        segment = self._segment_of(batch)
        base = batch.base_offset if segment is None else segment.base_offset
        position = batch.base_offset - base + int(batch.columns.positions[row])
        return TimeAt(
            int(batch.columns.store_timestamps[row]),
            int(batch.queue_offsets[row]),
            base,
            position + STORE_TIMESTAMP_POSITION,
        )

    def _place(
        self, batch: MessageBatch, row: int, field_position: int
    ) -> tuple[SegmentId | None, int | None]:
        extent = self._segment_of(batch)
        if extent is None:
            return None, None
        position = batch.base_offset - extent.base_offset + int(batch.columns.positions[row])
        return extent.id, position + field_position

    def _segment_of(self, batch: MessageBatch) -> SegmentExtent | None:
        return extent_at(self._queue.commit_log, batch.base_offset)


def time_order_finding(queue: QueueFiles, at: TimeAt, before_ms: int) -> Finding:
    """Return a finding that the message at `at` has an earlier time than the previous message."""
    segment = extent_at(queue.commit_log, at.segment_base)
    return note(
        "store-time-order",
        "store time is before that of the message in front: a clock was set back, or the "
        "field is damaged",
        None if segment is None else segment.id,
        at.position,
        at.queue_offset,
        expected=f"at least {before_ms}",
        found=at.store_time_ms,
    )
