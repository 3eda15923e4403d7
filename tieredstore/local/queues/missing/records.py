"""Records in a span of a commit log, and the units that they require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.local.log.foreign_log import ForeignCommitLog, find_record
from tieredstore.local.queues.interface import ConsumeQueueReader, QueueUnits
from tieredstore.local.queues.names import find_queue_fault
from tieredstore.local.queues.record_units import find_units
from tieredstore.message.columns.records import RecordColumns, record_columns
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD
from tieredstore.message.properties import parse_number
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import INNER_BATCH, TRANSACTION_PREPARED

_UNITS: Final = 1 << 16
_NEAR_BYTES: Final = 1 << 16
Int64s = npt.NDArray[np.int64]


class Uncovered(NamedTuple):
    """Bytes [begin, end) of one log file, in which some records may have no unit or the log may
    end. `starts`: positions of the records with units, in order."""

    begin: int
    end: int
    starts: Int64s


class UnreadableQueues(Exception):
    """Raised if the units of some queues cannot be read, which makes the comparison with the log
    invalid. `errors`: errors by queue."""

    def __init__(self, errors: dict[QueueKey, TieredStoreError]) -> None:
        super().__init__(f"{len(errors)} queues")
        self.errors = errors


def find_uncovered(
    log: ForeignCommitLog, queues: Iterable[ConsumeQueueReader], end: int
) -> Iterator[Uncovered]:
    """Yield the spans before the log offset `end` that have no units, file by file. Raises
    Unavailable, and UnreadableQueues at the end."""
    walks = [_UnitWalk(queue) for queue in queues]
    errors: dict[QueueKey, TieredStoreError] = {}
    for base in log.run.offsets:
        stop = min(base + log.file_size, end)
        if stop <= base:
            break
        parts = []
        for walk in walks:
            try:
                parts.append(walk.take_before(stop))
            except Unavailable:
                raise
            except TieredStoreError as error:
                errors[walk.key] = error
        walks = [walk for walk in walks if walk.key not in errors]
        if not errors:
            yield from _find_spans(base, stop, base + log.file_size, parts)
    if errors:
        raise UnreadableQueues(errors)


def _find_spans(
    base: int, stop: int, file_end: int, parts: list[npt.NDArray[Any]]
) -> Iterator[Uncovered]:
    units = np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int64)
    units = units[(units[:, 0] >= base) & (units[:, 0] < stop)]
    units = units[units[:, 0].argsort(kind="stable")]
    units = units[units.sum(axis=1) <= file_end]  # others have a false size
    starts = units[:, 0]
    ends = np.maximum.accumulate(units.sum(axis=1)) if len(units) else starts
    begins = np.concatenate(([base], ends))
    behind = np.concatenate((starts, [stop]))
    gaps = np.flatnonzero(begins < behind)
    if not len(gaps):
        return
    # Near gaps are one span: one read is cheaper than several.
    near = np.flatnonzero(begins[gaps][1:] - behind[gaps][:-1] > _NEAR_BYTES) + 1
    for group in np.split(gaps, near):
        first, last = int(begins[group[0]]), int(behind[group[-1]])
        inside = starts[np.searchsorted(starts, first) : np.searchsorted(starts, last)]
        yield Uncovered(first, last, inside)


class _UnitWalk:
    """Walk over the units of one queue, in the order of the queue and of the log."""

    def __init__(self, queue: ConsumeQueueReader) -> None:
        self.key = QueueKey(queue.topic, queue.queue_id)
        self._queue = queue
        self._next = queue.min_offset
        self._end = queue.max_offset
        self._ahead: npt.NDArray[Any] = np.empty((0, 2), dtype=np.int64)

    def take_before(self, stop: int) -> npt.NDArray[Any]:
        """Take the next units whose messages begin before the log offset `stop`. Returns (physical
        offset, size) of each unit: int64[n, 2]."""
        taken = []
        while True:
            ahead = self._ahead
            behind = np.flatnonzero(ahead[:, 0] >= stop)
            if len(behind):
                taken.append(ahead[: behind[0]])
                self._ahead = ahead[behind[0] :]
                break
            taken.append(ahead)
            self._ahead = ahead[:0]
            if self._next >= self._end:
                break
            units = self._queue.read_units(self._next, min(_UNITS, self._end - self._next))
            if not len(units):
                break
            self._next += len(units)
            found = np.empty((len(units), 2), dtype=np.int64)
            found[:, 0], found[:, 1] = units["physical_offset"], units["size"]
            self._ahead = found[(found[:, 1] > 0) & (found[:, 1] < BLANK_SIZE_FIELD)]
        return np.concatenate(taken)


_PIECE_BYTES: Final = 4 << 20
_LEAST: Final = 8
"""Number of bytes at the end of a file that are too few for a blank record."""


class Unread(NamedTuple):
    """Bytes [begin, end) of a log without records, and the reason. Messages there may have been
    lost."""

    begin: int
    end: int
    reason: str


class Misplaced(NamedTuple):
    """Message with a false queue offset or a false position of its own. `position`, `size`: its
    record in the log (bytes). `offset`: its queue offset by the message before it, or -1."""

    key: QueueKey
    position: int
    size: int
    offset: int = -1


class Joint(NamedTuple):
    """Record of several messages, whose unit is in a batch consume queue. `position`: position of
    the record in the log (bytes). `from_offset`, `until_offset`: queue offsets of its messages."""

    key: QueueKey
    position: int
    from_offset: int
    until_offset: int


Found = QueueUnits | StoredMessage | Unread | Joint | Misplaced


def find_records(
    log: ForeignCommitLog, span: Uncovered, delays_ms: tuple[int, ...]
) -> Iterator[Found]:
    """Yield the contents of a span except records with units: results of `find_units`, records of
    several messages, and bytes that are not a record. After such bytes, the search continues at the
    next record that has a unit or contains its own position. Raises Unavailable."""
    position = span.begin
    while position < span.end:
        piece = _read_piece(log, position, span.end)
        if piece is None:
            return  # its owner has deleted an expired file
        walk = walk_records(piece)
        if len(walk.positions):
            yield from _find_in_piece(piece, position, walk.positions, span.starts, delays_ms)
            position += walk.next_position
            continue
        if walk.stop is Stop.BLANK or span.end - position < _LEAST:
            return
        following = _find_next(log, span, position)
        yield Unread(position, following, f"expected a record, found {_name(walk.stop)}")
        position = following


def _find_next(log: ForeignCommitLog, span: Uncovered, position: int) -> int:
    """Return the position of the next record after `position`, where no record begins, or the end
    of the span."""
    row = int(span.starts.searchsorted(position, side="right"))
    if row < len(span.starts):
        return int(span.starts[row])
    found = find_record(log, position + 1)
    return found if 0 <= found < span.end else span.end


def _name(stop: Stop) -> str:
    if stop is Stop.EMPTY:
        return "zeros"
    return "one that extends into the next one" if stop is Stop.CUT else "something else"


def _read_piece(log: ForeignCommitLog, position: int, end: int) -> memoryview | None:
    """Read bytes from `position` on, including at least the whole record there, if it exists."""
    length = min(_PIECE_BYTES, end - position)
    while True:
        piece = log.get(position, length)
        if piece is None or length == end - position:
            return piece
        walk = walk_records(piece)
        if len(walk.positions) or walk.stop is not Stop.CUT:
            return piece
        length = min(2 * length, end - position)


def _find_in_piece(
    piece: memoryview, begin: int, positions: Int64s, starts: Int64s, delays_ms: tuple[int, ...]
) -> Iterator[Found]:
    positions = positions[~np.isin(positions + begin, starts)]
    if not len(positions):
        return
    try:
        yield from _find_in_records(piece, begin, record_columns(piece, positions), delays_ms)
    except Corrupt as error:
        if len(positions) == 1:
            at = begin + int(positions[0])
            yield Unread(at, at + 1, str(error))
            yield from _find_misplaced(piece[int(positions[0]) :], at)
            return
        for row in range(len(positions)):
            yield from _find_in_piece(piece, begin, positions[row : row + 1], starts, delays_ms)


def _find_misplaced(piece: memoryview, at: int) -> Iterator[Misplaced]:
    """Yield the message of the record at the log offset `at`, which cannot be read, if its body and
    its queue are right. A half message, and a record of several messages, are in no such queue."""
    try:
        message = decode_record(piece[: int.from_bytes(piece[:4], "big")])
        message.check_body()
    except Corrupt:
        return
    key = QueueKey(message.topic, message.queue_id)
    is_in_queue = not message.sys_flag & (INNER_BATCH | TRANSACTION_PREPARED)
    if message.physical_offset != at and is_in_queue and find_queue_fault(*key) is None:
        yield Misplaced(key, at, message.size)


def _find_in_records(
    piece: memoryview, begin: int, records: RecordColumns, delays_ms: tuple[int, ...]
) -> list[Found]:
    moved = np.flatnonzero(records.physical_offsets != records.positions + begin)
    if len(moved):
        at = begin + int(records.positions[moved[0]])
        raise Corrupt(
            f"record at {at} of the commit log: expected its own place in it, found "
            f"{int(records.physical_offsets[moved[0]])}",
            offset=at,
        )
    found: list[Found] = list(find_units(piece, records, delays_ms))
    for row in np.flatnonzero((records.sys_flags & INNER_BATCH) != 0).tolist():
        start = int(records.positions[row])
        message = decode_record(piece[start : start + int(records.sizes[row])])
        base = parse_number(message.get_property("INNER_BASE"))
        base = message.queue_offset if base is None else base
        count = parse_number(message.get_property("INNER_NUM"))
        key = QueueKey(message.topic, message.queue_id)
        if count is not None and find_queue_fault(*key) is None:
            found.append(Joint(key, begin + start, base, base + count))
    return found
