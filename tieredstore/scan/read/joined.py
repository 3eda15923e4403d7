"""Joint read of many small ranges. A sound range costs two requests, and the work on columns is
done once for many ranges. A range that is not sound is read again, separately, to find its
damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import (
    RecordColumns,
    check_bodies,
    gather_headers,
    record_columns,
)
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, extent_at
from tieredstore.scan.generation import is_still_there
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import Bools, Int64s
from tieredstore.scan.read.batches import BATCH_BYTES, BATCH_ROWS
from tieredstore.scan.read.record_checks import find_right_heads, find_right_topics

MOST_BYTES = 256 << 10
"""Maximum commit log bytes of a range that is read together with other ranges."""


@dataclass(frozen=True, slots=True)
class JoinedBatch:
    """Messages of several ranges in one buffer, range by range, in offset order. `queues`: queue of
    each range. `counts`: int64[ranges], number of messages of each range. `tags_codes`: tags codes
    of the units. `columns`: fields of the records, with positions in the buffer."""

    queues: tuple[QueueFiles, ...]
    counts: Int64s
    tags_codes: Int64s
    buffer: memoryview
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.columns)

    def owners(self) -> Iterator[tuple[QueueFiles, int]]:
        """Yield the queue of each range, and the range's number of rows."""
        return zip(self.queues, self.counts.tolist(), strict=True)


class _Piece(NamedTuple):
    """Range with its bytes. `units`: bytes of its units. `log`: bytes of its messages. `start`:
    commit log offset of `log`."""

    range: ScanRange
    units: memoryview
    start: int
    log: memoryview


def group_small(ranges: Sequence[ScanRange]) -> Iterator[list[ScanRange]]:
    """Group adjacent small ranges that are read together, each group with about one batch of
    messages. Other ranges are groups of their own."""
    group: list[ScanRange] = []
    size_bytes = rows = 0
    for one in ranges:
        is_small = one.size_bytes <= MOST_BYTES and one.count <= BATCH_ROWS and one.until_ms is None
        is_full = size_bytes + one.size_bytes > BATCH_BYTES or rows + one.count > BATCH_ROWS
        if group and (is_full or not is_small):
            yield group
            group, size_bytes, rows = [], 0, 0
        if not is_small:
            yield [one]
            continue
        group.append(one)
        size_bytes, rows = size_bytes + one.size_bytes, rows + one.count
    if group:
        yield group


def read_joined(
    provider: SegmentProvider, ranges: Sequence[ScanRange]
) -> tuple[list[bool], JoinedBatch | None]:
    """Read ranges and find the sound ones. In a sound range, the units refer to whole, adjacent
    records, each record belongs to its unit, and each body has the right CRC. Bounds of store times
    are ignored. Returns whether each range is sound, and the messages of the sound ranges (None
    without a sound range). Raises Expired, Unavailable."""
    found = list(map_ahead(provider, lambda one: _read(provider, one), ranges))
    sound = np.array([piece is not None for piece in found], np.bool_)
    batch, right = _check([piece for piece in found if piece is not None])
    sound[sound] = right
    return sound.tolist(), batch


def _read(provider: SegmentProvider, one: ScanRange) -> _Piece | None:
    """Read the bytes of a range. Returns None if its units or its messages are in more than one
    segment, or if the messages cannot be adjacent. Raises Expired, Unavailable."""
    queue = one.queue
    units = read_within(
        provider, queue.consume_queue, one.from_offset * UNIT_SIZE, one.count * UNIT_SIZE
    )
    if units is None:
        return None
    ends = np.frombuffer(units, UNIT_DTYPE)[[0, -1]]
    start, last = ends["physical_offset"].tolist()
    length = last + int(ends["size"][1]) - start
    if not one.count * MIN_RECORD_SIZE <= length <= MOST_BYTES:
        return None
    log = read_within(provider, queue.commit_log, start, length)
    if one.witness is not None:
        is_still_there(provider, one.witness)
    return None if log is None else _Piece(one, units, start, log)


def read_within(
    provider: SegmentProvider, extents: tuple[SegmentExtent, ...], offset: int, length: int
) -> memoryview | None:
    """Read bytes of one segment. Return None if bytes are missing or damaged. Raises
    Unavailable."""
    extent = extent_at(extents, offset)
    if length <= 0 or extent is None or offset + length > extent.end_offset:
        return None
    segment = provider.open(extent.id, extent.listing)
    try:
        return segment.read(offset - extent.base_offset, length)
    except Corrupt:
        return None
    finally:
        segment.close()


def _check(pieces: Sequence[_Piece]) -> tuple[JoinedBatch | None, Bools]:
    """Return the messages of the sound pieces, and whether each piece is sound."""
    sound = np.ones(len(pieces), np.bool_)
    if not pieces:
        return None, sound
    units = np.frombuffer(b"".join(piece.units for piece in pieces), UNIT_DTYPE)
    buffer = memoryview(b"".join(piece.log for piece in pieces))
    counts = np.array([piece.range.count for piece in pieces])
    firsts, owners = np.cumsum(counts) - counts, np.repeat(np.arange(len(pieces)), counts)
    lengths = np.array([len(piece.log) for piece in pieces])
    # From an offset in a queue's log to the place in the buffer.
    shifts = np.cumsum(lengths) - lengths - np.array([piece.start for piece in pieces])
    offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    following = offsets + sizes
    right: Bools = sizes >= MIN_RECORD_SIZE
    right[1:] &= (offsets[1:] == following[:-1]) | (owners[1:] != owners[:-1])
    if not right.all():
        return _check_rest(pieces, owners[~right])
    headers = gather_headers(buffer, offsets + shifts[owners])
    begins = np.array([piece.range.from_offset for piece in pieces])
    numbers = np.arange(len(units)) - firsts[owners] + begins[owners]
    queue_ids = np.array([piece.range.queue.queue_id for piece in pieces])[owners]
    right = find_right_heads(headers, offsets, sizes, queue_ids)
    right &= headers["queue_offset"] == numbers
    if not right.all():
        return _check_rest(pieces, owners[~right])
    try:
        columns = record_columns(buffer, offsets + shifts[owners], headers)
    except Corrupt:
        if len(pieces) == 1:
            return None, ~sound
        alone = [_check([piece])[0] for piece in pieces]
        return _check_rest(pieces, np.flatnonzero([batch is None for batch in alone]))
    topics = [piece.range.queue.topic for piece in pieces]
    right = find_right_topics(buffer, columns, topics, owners) & check_bodies(buffer, columns)
    if not right.all():
        return _check_rest(pieces, owners[~right])
    queues = tuple(piece.range.queue for piece in pieces)
    tags_codes = units["tags_code"].astype(np.int64)
    return JoinedBatch(queues, counts, tags_codes, buffer, columns), sound


def _check_rest(pieces: Sequence[_Piece], bad: Int64s) -> tuple[JoinedBatch | None, Bools]:
    """Repeat the check without the ranges that are bad."""
    sound = np.ones(len(pieces), np.bool_)
    sound[bad] = False
    batch, right = _check([pieces[number] for number in np.flatnonzero(sound).tolist()])
    sound[sound] = right
    return batch, sound
