"""Comparison of a queue's metadata and time records with its contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import STORE_TIMESTAMP_POSITION
from tieredstore.message.time_records import TimedRange
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import WRONG_TIMES, Finding, OnFinding, damage, note
from tieredstore.scan.read.batch import Int64s, MessageBatch
from tieredstore.scan.time_search.recorded import RecordedTimes
from tieredstore.scan.time_search.search import is_read_whole
from tieredstore.scan.verify.outcome import SegmentTimes

_LEAST_MS: Final = 1_000_000_000_000
_MOST_MS: Final = 100_000_000_000_000
"""Bounds of plausible store times, epoch ms: from the year 2001 to the year 5138."""


def check_metadata(
    queue: QueueFiles,
    known: Mapping[SegmentId, FileSegmentMetadata],
    times: Mapping[SegmentId, SegmentTimes],
    damaged: set[SegmentId],
    on_finding: OnFinding,
    *,
    first_alive: int,
) -> None:
    """Compare the metadata of a queue with its segments. `times`: store times in each segment.
    `damaged`: segments whose store times are not all known. `first_alive`: first unit whose message
    has not expired. Earlier times are unknown."""
    for extents in (queue.commit_log, queue.consume_queue):
        for extent in extents:
            entry = known.get(extent.id)
            if entry is None or extent.listing is None:
                continue  # told by the catalogue
            if entry.size > extent.size_bytes + extent.surplus_bytes:
                continue  # told by the catalogue
            if entry.size != extent.size_bytes:
                _report_size(extent, entry.size, extent is extents[-1], on_finding)
            elif (
                extent.id in times
                and extent.id not in damaged
                and not _has_expired_units(extent, first_alive)
            ):
                _check_times(extent, entry, times[extent.id], on_finding)


def _report_size(
    extent: SegmentExtent, recorded: int, is_last: bool, on_finding: OnFinding
) -> None:
    segment, size, known = extent.id, f"{extent.size_bytes} bytes", f"{recorded} bytes"
    if recorded > extent.size_bytes:
        text, at = "the segment is shorter than the metadata says", extent.size_bytes
        on_finding(damage("segment-truncated", text, segment, at, expected=known, found=size))
    elif is_last:
        text = (
            "the metadata knows less of the segment than there is (a writer is running or was "
            "killed, and its next start corrects it)"
        )
        on_finding(note("metadata-size", text, segment, expected=size, found=known))
    else:
        text = "the metadata knows less of the segment than there is"
        on_finding(damage("metadata-size", text, segment, expected=size, found=known))


def _check_times(
    extent: SegmentExtent, entry: FileSegmentMetadata, times: SegmentTimes, on_finding: OnFinding
) -> None:
    if times.is_empty:
        return  # no message says when: a segment that begins, or an old one with its coda alone
    for name, found, right, java in (
        ("begin", entry.begin_timestamp_ms, times.low, times.java_low),
        ("end", entry.end_timestamp_ms, times.high, times.java_high),
    ):
        if found not in (right, java):
            text = f"{name} time of the segment in the metadata"
            on_finding(
                (note if is_unknown_time(found) else damage)(
                    "metadata-time", text, extent.id, expected=right, found=found
                )
            )


def is_unknown_time(time_ms: int) -> bool:
    """Return whether a recorded time cannot be a store time. It then means "no time", or Java has
    read it from the wrong bytes."""
    return not _LEAST_MS <= time_ms < _MOST_MS


def _has_expired_units(extent: SegmentExtent, first_alive: int) -> bool:
    is_queue = extent.id.type is FileSegmentType.CONSUME_QUEUE
    return is_queue and first_alive * UNIT_SIZE > extent.base_offset


class TimesComparison:
    """Comparison of recorded times with the messages. Each wrong range is reported once."""

    def __init__(self, reader: QueueReader) -> None:
        self._is_recorded = not is_read_whole(reader.queue)
        self._recorded = RecordedTimes(reader)
        self._told: set[TimedRange] = set()

    def check(self, batch: MessageBatch, segment: SegmentExtent) -> Iterator[Finding]:
        """Yield a finding for each recorded range of times that differs from the messages. Raises
        Unavailable."""
        ranges = self._recorded.of(segment) if self._is_recorded else []
        numbers, times = batch.queue_offsets, batch.columns.store_timestamps
        falls = np.append(False, (times[1:] < times[:-1]) & (numbers[1:] == numbers[:-1] + 1))
        last = int(numbers[-1])
        for one in ranges:
            if one.first > last:
                break
            low, high = numbers.searchsorted([one.first, one.until])
            wrong = (times[low:high] < one.least_ms) | (times[low:high] > one.most_ms)
            if one.rises:
                wrong[1:] |= falls[low + 1 : high]
            if wrong.any() and one not in self._told:
                self._told.add(one)
                row = int(low) + int(wrong.argmax())
                rising = ", rising" if one.rises else ""
                yield damage(
                    WRONG_TIMES,
                    f"the recorded times of the messages {one.first} to {one.until - 1} are wrong, "
                    "so a search by time leaves some out. `verify --seal` records them again",
                    segment.id,
                    one.start - segment.base_offset,
                    int(numbers[row]),
                    expected=f"{one.least_ms} to {one.most_ms}{rising}, as recorded",
                    found=int(times[row]),
                )


def java_store_times(buffer: memoryview, positions: Int64s) -> Int64s:
    """Return as int64[n] what Java's tier reads as the store time of each record: the bytes at
    position 56. With an IPv6 born host they belong to the address (`docs/differences.md`, D14)."""
    longs = view_unaligned(buffer, ">i8")
    return longs[positions + STORE_TIMESTAMP_POSITION].astype(np.int64)
