"""Chooses the log records whose missing units must be added to a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.queues.interface import ConsumeQueueReader, QueueUnits
from tieredstore.local.queues.missing.records import Unread
from tieredstore.local.queues.missing.spilled_rows import Rows, Spill, SpilledRows
from tieredstore.local.queues.rebuilt import ROW_DTYPE, RebuiltQueue
from tieredstore.local.queues.unit_search import find_first
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.message.record import decode_record

FOUND_DTYPE: Final = np.dtype([*ROW_DTYPE.descr, ("offset", np.int64)])
_ROWS: Final = 1 << 16
_MOST_FALSE: Final = 1 << 12
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class _Fit(NamedTuple):
    """Masks (bool[n] each) of the messages that a queue lacks, and of those that contradict its
    units."""

    lacks: Bools
    contradicts: Bools


class QueueEnds(NamedTuple):
    """First and last message of a queue whose unit is right: their queue offsets, the position of
    the first one in the log, and the end of the last one (bytes)."""

    first_offset: int
    first_position: int
    last_offset: int
    last_end: int


def choose_units(
    key: QueueKey,
    rows: SpilledRows,
    queue: ConsumeQueueReader | None,
    log: ForeignCommitLog,
    deleted_before: int,
    late: int | None,
    spill: Spill,
) -> tuple[list[RebuiltQueue], list[Unread], npt.NDArray[Any]]:
    """Return the valid units, in runs, and the messages whose queue offsets contradict other
    messages or the log: as text, and as rows. Units from before a deletion of the topic are
    omitted. The log shows a deletion by its message, or by lower queue offsets after it. A single
    message out of order has a damaged offset, and shows no deletion."""
    runs: list[RebuiltQueue] = []
    misplaced: list[npt.NDArray[Any]] = []
    last = -1
    ends = None if queue is None else find_ends(key, queue, log)
    begin = -1 if ends is None else _find_generation(rows, ends)
    known = None if ends is None else (ends.last_offset, ends.last_end)
    for block, is_odd in _read_windows(rows):
        positions = block["unit"]["physical_offset"].astype(np.int64)
        offsets = block["offset"].astype(np.int64)
        good = positions > deleted_before
        if late is not None:
            good &= positions < late
        wrong = good & is_odd
        good &= ~is_odd
        if queue is not None:
            fit = _find_fit(key, queue, ends, begin, log, block)
            wrong |= good & fit.contradicts
            good &= fit.lacks
        known = _take_jumps(block, good, wrong, known)
        chosen = np.flatnonzero(good)
        # A step back begins a new generation of the topic.
        before = np.concatenate(([last], offsets[chosen]))
        back = chosen[np.flatnonzero(np.diff(before) <= 0)]
        last = int(before[-1])
        if len(back):
            runs = []
            if offsets[back[-1]]:  # a generation begins at 0
                wrong[: back[-1]] |= good[: back[-1]]
            good[: back[-1]] = False
        misplaced.append(block[wrong])
        chosen = np.flatnonzero(good)
        if not len(chosen):
            continue
        for part in np.split(chosen, np.flatnonzero(np.diff(offsets[chosen]) != 1) + 1):
            offset = int(offsets[part[0]])
            if not runs or runs[-1].max_offset != offset:
                runs.append(RebuiltQueue(key, log, str(log.directory), spill))
            some = block[part]
            runs[-1].add(QueueUnits(key, offset, some["unit"], some["store_timestamp"]))
    found = np.concatenate(misplaced)
    unread = _describe_misplaced(key, found)
    # A light queue is not compared: it may well have its first messages.
    if queue is None and deleted_before < 0 and not key.topic.startswith(LMQ_PREFIX):
        unread += _find_lost_begin(key, runs, log)
    return runs, unread, found


def find_ends(key: QueueKey, queue: ConsumeQueueReader, log: ForeignCommitLog) -> QueueEnds | None:
    """Find the first and the last right unit of a queue. Only the first and the last _MOST_FALSE
    units are tried. Return None if none of them is right."""
    low, high = queue.min_offset, queue.max_offset
    unit = queue.unit(low)
    if unit is not None and unit[0] < log.min_offset:  # expired
        low = find_first(low, high, lambda at: (queue.unit(at) or (0,))[0] >= log.min_offset)

    def is_right(offset: int) -> bool:
        unit = queue.unit(offset)
        return unit is not None and _is_message(log, unit, key, offset)

    first = next(filter(is_right, range(low, min(low + _MOST_FALSE, high))), -1)
    last = next(filter(is_right, range(high - 1, max(low, high - _MOST_FALSE) - 1, -1)), -1)
    first_unit, last_unit = queue.unit(first), queue.unit(last)
    if first_unit is None or last_unit is None:
        return None
    return QueueEnds(first, first_unit[0], last, last_unit[0] + last_unit[1])


def _find_generation(rows: SpilledRows, ends: QueueEnds) -> int:
    """Return the position in the log of the last message with offset 0 before the messages of the
    units, or -1. Earlier messages may be from before a deletion of the queue."""
    found = -1
    for block in rows.blocks():
        positions = block["unit"]["physical_offset"][block["offset"] == 0].astype(np.int64)
        found = max(found, *positions[positions < ends.first_position].tolist(), -1)
    return found


def _take_jumps(
    block: Rows, good: Bools, wrong: Bools, known: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Move single messages with impossible offsets from `good` to `wrong`: the log has no room for
    the messages of all offsets between theirs and the one before. `known`: queue offset and end
    (position in the log) of the last known message, or None. Returns the next `known`."""
    offset, end = known or (-1, -1)
    positions = block["unit"]["physical_offset"].astype(np.int64)
    chosen = np.flatnonzero(good & (positions >= end))
    if not len(chosen):
        return known
    offsets = block["offset"][chosen].astype(np.int64)
    ends = positions[chosen] + block["unit"]["size"][chosen]
    room = positions[chosen] - np.concatenate(([end], ends[:-1]))
    steps = np.diff(offsets, prepend=offset if known else offsets[0] - 1)
    is_alone = np.append(np.diff(offsets) != 1, True)
    far = is_alone & ((steps - 1) * MIN_RECORD_SIZE > room)
    good[chosen[far]], wrong[chosen[far]] = False, True
    rest = np.flatnonzero(~far)
    return (int(offsets[rest[-1]]), int(ends[rest[-1]])) if len(rest) else known


def _read_windows(rows: SpilledRows) -> Iterator[tuple[Rows, Bools]]:
    """Yield all rows in windows, each with a mask of the single queue offsets out of order
    (`_find_odd`)."""
    for begin in range(0, len(rows), _ROWS):
        end = min(begin + _ROWS, len(rows))
        low, high = max(begin - 1, 0), min(end + 1, len(rows))
        block = rows.read(low, high)
        odd = _find_odd(block["offset"].astype(np.int64), is_whole=high == len(rows))
        yield block[begin - low : end - low], odd[begin - low : end - low]


def _find_odd(offsets: Int64s, *, is_whole: bool) -> Bools:
    """Return a mask of single offsets that are out of order. Such an offset is between two
    consecutive offsets, or is not higher than the offset before it and not continued by the next
    one. `is_whole`: whether `offsets` includes the queue's last offset."""
    odd = np.zeros(len(offsets), np.bool_)
    steps = np.diff(offsets)
    odd[1:-1] = (steps[:-1] != 1) & (steps[:-1] + steps[1:] == 2)
    is_alone = np.append(steps[1:] != 1, is_whole)[: len(steps)]
    odd[1:] |= (steps <= 0) & (offsets[1:] != 0) & is_alone & ~odd[:-1]
    return odd


def _find_fit(
    key: QueueKey,
    queue: ConsumeQueueReader,
    ends: QueueEnds | None,
    generation: int,
    log: ForeignCommitLog,
    rows: Rows,
) -> _Fit:
    """Find the messages that a queue lacks: before its units, after its units, and at offsets whose
    unit is empty or does not name the message. If the queue begins with message 0, a message that
    lies in the log before it is from before a deletion of the queue, and contradicts no unit.
    Otherwise a message in that part of the log is of this queue, unless its own queue begins at 0
    between them, at the position `generation`."""
    offsets = rows["offset"].astype(np.int64)
    positions = rows["unit"]["physical_offset"].astype(np.int64)
    fit = _Fit(np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_))
    if ends is None:
        fit.lacks[:] = True
        return fit
    is_before, is_after = offsets < ends.first_offset, offsets > ends.last_offset
    is_later = positions > ends.first_position
    fit.lacks[:] |= is_before & ~is_later
    fit.contradicts[:] |= is_before & is_later
    if ends.first_offset:
        is_earlier = positions < ends.first_position
        fit.contradicts[:] |= ~is_before & is_earlier & (positions >= generation)
    fit.lacks[:] |= is_after & (positions >= ends.last_end)
    fit.contradicts[:] |= is_after & is_later & (positions < ends.last_end)
    for row in np.flatnonzero(~(is_before | is_after)).tolist():
        offset, position = int(offsets[row]), int(positions[row])
        unit = queue.unit(offset)
        if unit is None or not 0 < unit[1] < BLANK_SIZE_FIELD:
            fit.lacks[row] = not fit.contradicts[row]
        elif unit[0] == position:
            fit.lacks[row] = unit[1] != rows["unit"]["size"][row]
        elif is_later[row]:
            fit.contradicts[row] = is_named = _is_message(log, unit, key, offset)
            fit.lacks[row] = not is_named
    return fit


def _is_message(
    log: ForeignCommitLog, unit: tuple[int, int, int], key: QueueKey, offset: int
) -> bool:
    """Return whether a unit refers to a record of the message at the queue offset `offset`."""
    record = log.get(unit[0], unit[1])
    try:
        message = None if record is None else decode_record(record)
    except Corrupt:
        return False
    return message is not None and (
        message.physical_offset == unit[0]
        and (message.topic, message.queue_id) == key
        and message.queue_offset == offset
    )


def _describe_misplaced(key: QueueKey, rows: npt.NDArray[Any]) -> list[Unread]:
    if not len(rows):
        return []
    positions = rows["unit"]["physical_offset"].astype(np.int64)
    last = int(positions.argmax())
    end = int(positions[last]) + int(rows["unit"]["size"][last])
    reason = (
        f"queue offsets of {len(rows)} messages of {key.topic}/{key.queue_id} contradict those of "
        f"others. One of them is {int(rows['offset'][0])}"
    )
    return [Unread(int(positions.min()), end, reason)]


def _find_lost_begin(
    key: QueueKey, runs: list[RebuiltQueue], log: ForeignCommitLog
) -> list[Unread]:
    """Report that the first messages of a queue are lost. This is the case if the log has all its
    bytes, but its first message of the queue is not at queue offset 0."""
    unit = runs[0].unit(runs[0].min_offset) if runs else None
    if unit is None or log.min_offset or not runs[0].min_offset:
        return []
    reason = f"{key.topic}/{key.queue_id} begins with message {runs[0].min_offset} in a whole log"
    return [Unread(0, unit[0], reason)]
