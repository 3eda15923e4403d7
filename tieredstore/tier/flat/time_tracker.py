"""Tracks the store times of the messages that a writer commits, and records them in the tier."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import TieredStoreError
from tieredstore.message.time_records import HEAD_BYTES, Int64s, cut_ranges, make_ranges
from tieredstore.tier import recorded_times
from tieredstore.tier.flat.batch import Mark
from tieredstore.tier.flat.queue_files import FlatCommitLogFile
from tieredstore.tier.reading import run
from tieredstore.tier.recorded_times import QueueRecords, SegmentTimes

_MOST_SEGMENTS: Final = 16
"""Maximum number of segments whose times are kept until they are recorded."""
_log = logging.getLogger(__name__)


def take_heads(buffer: memoryview, starts: Int64s, ends: Int64s) -> dict[int, bytes]:
    """Return the first bytes of the first message in each range of `make_ranges`, by index of the
    message. `starts` and `ends`: int64[n], start and end of each record in the commit log.
    `buffer`: the records."""
    begin = int(starts[0]) if len(starts) else 0
    places = [int(starts[low]) for low, _ in cut_ranges(starts, ends)]
    return {at: bytes(buffer[at - begin : at - begin + HEAD_BYTES]) for at in places}


class TimeTracker:
    """Keeps the store times of a queue's committed messages until they are recorded in the tier,
    which takes one request. The caller must hold the queue's lock."""

    __slots__ = ("_commit_log", "_failed_at", "_path", "_place", "_records", "_segments")

    def __init__(self, provider: SegmentProvider, path: str, commit_log: FlatCommitLogFile) -> None:
        self._place = find_layer(provider, TimesPlace)
        self._path = path
        self._commit_log = commit_log
        self._segments: list[SegmentTimes] = []
        self._records: QueueRecords | None = None
        self._failed_at: int | None = None

    def add(self, mark: Mark) -> None:
        """Add the store times of newly committed messages, all in one segment."""
        if self._place is None or not len(mark.log_ends):
            return
        starts = np.concatenate([[mark.log_begin], mark.log_ends[:-1]])
        ranges = make_ranges(starts, mark.log_ends, mark.first_unit, mark.times)
        self._find_segment(mark.log_begin).add(ranges, mark.heads)

    def _find_segment(self, begin: int) -> SegmentTimes:
        segments = self._commit_log.segments
        base = next((one.base_offset for one in reversed(segments) if one.base_offset <= begin), 0)
        if not self._segments or self._segments[-1].base != base:
            there = {one.base_offset for one in segments}
            kept = [one for one in self._segments if one.base in there and not one.is_recorded]
            for one in kept:
                one.has_ended = True
            self._segments = [*kept[1 - _MOST_SEGMENTS :], SegmentTimes(base)]
        return self._segments[-1]

    def note_roll(self) -> None:
        """Record that the last segment has ended. Its times are then recorded soon."""
        if self._segments:
            self._segments[-1].has_ended = True

    @property
    def is_due(self) -> bool:
        """Whether any times are due to be recorded."""
        if self._commit_log.size_bytes < recorded_times.LEAST_BYTES:
            return False
        if (
            self._failed_at is not None
            and self._end < self._failed_at + recorded_times.RECORD_BYTES
        ):
            return False
        return any(one.is_due for one in self._segments)

    @property
    def _end(self) -> int:
        return self._segments[-1].end if self._segments else 0

    def record(self) -> None:
        """Record the times that are due. If this fails, it is retried later."""
        if self._place is None:
            return
        if self._records is None:
            self._records = QueueRecords(self._place, self._path)
        self._failed_at = None
        try:
            for one in self._segments:
                if one.is_due:
                    one.record(self._records, self._read)
            self._records.drop_stale(one.base_offset for one in self._commit_log.segments)
        except TieredStoreError as error:
            self._failed_at = self._end
            _log.warning("%s: its store times are not recorded: %s", self._path, error)

    def delete(self) -> None:
        """Delete all time records of the queue, because its segments are deleted. A record that
        cannot be deleted is harmless, because it does not match later messages. `verify --seal`
        deletes it."""
        self._segments = []
        if self._place is None:
            return
        records = self._records or QueueRecords(self._place, self._path)
        if not records.is_listed and self._commit_log.append_offset < recorded_times.LEAST_BYTES:
            return
        try:
            records.delete_all()
        except TieredStoreError as error:
            _log.warning("%s: its recorded times are left: %s", self._path, error)

    def _read(self, offset: int, length: int) -> memoryview:
        damaged: list[BlocksDamaged] = []
        data = run(self._commit_log.read(offset, length, damaged))
        if damaged:
            raise damaged[0]
        return data
