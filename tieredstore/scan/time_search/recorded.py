"""Recorded store times of a queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.time_records import TimesName, TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.time_records import TimedRange
from tieredstore.scan.catalogue import Interval, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.time_search.exact import Piece
from tieredstore.tier.recorded_times import Read, find_newest, read_record

_log = logging.getLogger(__name__)


class RecordedTimes:
    """Time records of a queue. Each is read once, when its segment is needed. Records that are
    unreadable or do not match the messages are ignored."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._place = find_layer(reader.provider, TimesPlace)
        self._names: dict[int, TimesName] | None = None
        self._ranges: dict[int, Sequence[TimedRange]] = {}

    def of(self, segment: SegmentExtent) -> Sequence[TimedRange]:
        """Return the ranges of a commit log segment that have recorded times, ascending."""
        base = segment.base_offset
        if base not in self._ranges:
            self._ranges[base] = self._read(base)
        return self._ranges[base]

    def _read(self, base: int) -> Sequence[TimedRange]:
        queue, place = self._reader.queue, self._place
        if place is None:
            return ()
        try:
            if self._names is None:
                sizes = {extent.base_offset: extent.size_bytes for extent in queue.commit_log}
                self._names = find_newest(place.list_times(queue.path), sizes)
            name = self._names.get(base)
            if name is None:
                return ()
            record = read_record(place, queue.path, name, make_read(self._reader))
        except (Unavailable, Invalid) as error:
            _log.warning("%s: its recorded times cannot be read: %s", queue.path, error)
            self._names = {}  # the others would fail alike
            return ()
        return () if record is None else record.ranges


def load_ranges(reader: QueueReader) -> list[TimedRange]:
    """Return the ranges of a queue with recorded times, ascending. They are loaded once per
    reader."""
    if reader.recorded_times is None:
        recorded = RecordedTimes(reader)
        ascending: list[TimedRange] = []
        for segment in reader.queue.commit_log:
            for one in recorded.of(segment):
                if not ascending or one.first >= ascending[-1].until:
                    ascending.append(one)
        reader.recorded_times = ascending
    return reader.recorded_times


def make_read(reader: QueueReader) -> Read:
    """Return a function that reads bytes of a queue's commit log, for checking recorded times."""

    def read(offset: int, length: int) -> memoryview:
        extent = reader.commit_log.extent_at(offset)
        end = offset + length if extent is None else min(offset + length, extent.end_offset)
        damaged: list[BlocksDamaged] = []
        data = reader.commit_log.prepare(offset, end - offset, damaged)()
        if damaged:
            raise damaged[0]
        return data

    return read


def cut_pieces(spans: Iterable[Interval], ranges: Iterable[TimedRange]) -> list[Piece]:
    """Split spans of queue offsets at the borders of ranges with recorded times. Both must be in
    ascending order."""
    pieces: list[Piece] = []
    known = list(ranges)
    number = 0
    for start, end in spans:
        while number < len(known) and known[number].until <= start:
            number += 1
        at, begin = number, start
        while begin < end:
            one = known[at] if at < len(known) else None
            if one is None or one.first >= end:
                pieces.append(Piece(begin, end))
                break
            if begin < one.first:
                pieces.append(Piece(begin, one.first))
            low, high = max(begin, one.first), min(end, one.until)
            pieces.append(Piece(low, high, (one.least_ms, one.most_ms)))
            begin, at = high, at + 1
    return pieces
