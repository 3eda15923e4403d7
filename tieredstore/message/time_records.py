"""Recorded store times of a commit log segment, as bytes (`docs/formats/time-records.md`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tieredstore.message.crc import raw_crc32

Int64s: TypeAlias = npt.NDArray[np.int64]
HEAD_BYTES: Final = 80
"""Number of bytes that a time record has from the beginning of the segment, and from the beginning
of the last range, to identify the segment."""
_MAGIC: Final = b"TSTIMES\0"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">8sIIqqI4x80s80s")
_ENTRY: Final = struct.Struct(">qqqqqqI4x")
_CRC: Final = struct.Struct(">I")
_RISES: Final = 1


class TimedRange(NamedTuple):
    """Range of adjacent whole messages and their times. [start, end): position in the queue's
    commit log (bytes). [first, until): queue offsets. `least_ms`, `most_ms`: smallest and largest
    store time (epoch ms). `rises`: whether times never decrease."""

    start: int
    end: int
    first: int
    until: int
    least_ms: int
    most_ms: int
    rises: bool


@dataclass(frozen=True, slots=True)
class TimeRecord:
    """Times of the messages of one segment.

    `base_offset`: base offset of the segment.
    `end_offset`: end of the last covered message in the commit log.
    `head`, `last_head`: first HEAD_BYTES of the segment and of the last range.
    `ranges`: at least one, ascending. Bytes between two ranges are not recorded.
    """

    base_offset: int
    end_offset: int
    head: bytes
    last_head: bytes
    ranges: tuple[TimedRange, ...]

    @property
    def size_bytes(self) -> int:
        """Number of bytes of the segment that the record covers."""
        return self.end_offset - self.base_offset

    @property
    def rises(self) -> bool:
        """Whether times never decrease in the whole segment."""
        ends = [self.base_offset, *(one.end for one in self.ranges)]
        most = [one.most_ms for one in self.ranges]
        return all(
            one.rises and one.start == end and (not number or one.least_ms >= most[number - 1])
            for number, (one, end) in enumerate(zip(self.ranges, ends, strict=False))
        )


def encode_time_record(record: TimeRecord) -> bytes:
    parts = [
        _HEADER.pack(
            _MAGIC,
            _VERSION,
            _RISES if record.rises else 0,
            record.base_offset,
            record.end_offset,
            len(record.ranges),
            record.head.ljust(HEAD_BYTES, b"\0"),
            record.last_head.ljust(HEAD_BYTES, b"\0"),
        )
    ]
    data = b"".join([*parts, pack_ranges(record.ranges)])
    return data + _CRC.pack(raw_crc32(data))


def pack_ranges(ranges: Iterable[TimedRange]) -> bytes:
    """Encode ranges as in a time record."""
    return b"".join(_ENTRY.pack(*one[:6], _RISES if one.rises else 0) for one in ranges)


def unpack_ranges(data: bytes | bytearray) -> list[TimedRange]:
    """Decode ranges from a time record."""
    return [
        TimedRange(start, end, first, until, least_ms, most_ms, bool(flags & _RISES))
        for start, end, first, until, least_ms, most_ms, flags in _ENTRY.iter_unpack(data)
    ]


def decode_time_record(data: bytes) -> TimeRecord | None:
    """Decode a record. Returns None if it is damaged, of a later version or not a record. The times
    of its segment then count as not recorded."""
    if len(data) < _HEADER.size + _CRC.size:
        return None
    body, crc = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])[0]
    magic, version, _, base, end, count, head, last_head = _HEADER.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or raw_crc32(body) != crc:
        return None
    if len(body) != _HEADER.size + count * _ENTRY.size:
        return None
    ranges = unpack_ranges(body[_HEADER.size :])
    if not _is_sound(base, end, ranges):
        return None
    return TimeRecord(base, end, head, last_head, tuple(ranges))


def _is_sound(base: int, end: int, ranges: Sequence[TimedRange]) -> bool:
    at, number = base, 0
    for one in ranges:
        if not (at <= one.start < one.end <= end and number <= one.first < one.until):
            return False
        at, number = one.end, one.until
    return at == end and bool(ranges)


RANGE_BYTES: Final = 1 << 20
"""Maximum size of a range in bytes of the commit log. A range of one message may be larger."""


def cut_ranges(starts: Int64s, ends: Int64s) -> Iterator[tuple[int, int]]:
    """Yield each range of messages as [low, high), with messages numbered from 0. `starts`, `ends`:
    see `make_ranges`."""
    low, count = 0, len(starts)
    while low < count:
        high = int(ends.searchsorted(starts[low] + RANGE_BYTES, side="right"))
        high = min(max(high, low + 1), count)
        yield low, high
        low = high


def make_ranges(starts: Int64s, ends: Int64s, first: int, times: Int64s) -> list[TimedRange]:
    """Group consecutive messages into ranges. `starts`, `ends`: int64[n], bytes of the commit log.
    Each message begins where the previous one ends. `first`: queue offset of the first message.
    `times`: int64[n], epoch ms."""
    ranges: list[TimedRange] = []
    for low, high in cut_ranges(starts, ends):
        part = times[low:high]
        ranges.append(
            TimedRange(
                int(starts[low]),
                int(ends[high - 1]),
                first + low,
                first + high,
                int(part.min()),
                int(part.max()),
                bool((part[1:] >= part[:-1]).all()),
            )
        )
    return ranges


def add_ranges(ranges: list[TimedRange], new: Iterable[TimedRange]) -> None:
    """Append ranges of one segment. A range that begins where the last range ends is merged with it
    if the result is small enough. A range that begins before that is skipped."""
    for one in new:
        last = ranges[-1] if ranges else None
        if last is not None and (one.start < last.end or one.first < last.until):
            continue
        follows = last is not None and (last.end, last.until) == (one.start, one.first)
        if last is not None and follows and one.end - last.start <= RANGE_BYTES:
            ranges[-1] = TimedRange(
                last.start,
                one.end,
                last.first,
                one.until,
                min(last.least_ms, one.least_ms),
                max(last.most_ms, one.most_ms),
                last.rises and one.rises and one.least_ms >= last.most_ms,
            )
        else:
            ranges.append(one)
