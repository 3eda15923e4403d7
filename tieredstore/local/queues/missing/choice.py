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
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.message.record import decode_record

FOUND_DTYPE: Final = np.dtype([*ROW_DTYPE.descr, ("offset", np.int64)])
_ROWS: Final = 1 << 16
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class _Fit(NamedTuple):
    """Masks (bool[n] each) of the messages that a queue lacks, and of those that contradict its
    units."""

    lacks: Bools
    contradicts: Bools


def choose_units(
    key: QueueKey,
    rows: SpilledRows,
    queue: ConsumeQueueReader | None,
    log: ForeignCommitLog,
    deleted_before: int,
    late: int | None,
    spill: Spill,
) -> tuple[list[RebuiltQueue], list[Unread]]:
    """Return the valid units, in runs, and the messages whose queue offsets contradict other
    messages or the log. Units from before a deletion of the topic are omitted. The log shows a
    deletion by its message, or by lower queue offsets after it. A single message out of order has a
    damaged offset, and shows no deletion."""
    runs: list[RebuiltQueue] = []
    misplaced: list[npt.NDArray[Any]] = []
    last = -1
    for block, is_odd in _read_windows(rows):
        offsets = block["offset"].astype(np.int64)
        positions = block["unit"]["physical_offset"].astype(np.int64)
        good = positions > deleted_before
        if late is not None:
            good &= positions < late
        wrong = good & is_odd
        good &= ~is_odd
        if queue is not None:
            fit = _find_fit(key, queue, log, offsets, positions)
            wrong |= good & fit.contradicts
            good &= fit.lacks
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
    unread = _describe_misplaced(key, np.concatenate(misplaced))
    # A light queue is not compared, because it may have its first messages.
    if queue is None and deleted_before < 0 and not key.topic.startswith(LMQ_PREFIX):
        unread += _find_lost_begin(key, runs, log)
    return runs, unread


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
    log: ForeignCommitLog,
    offsets: Int64s,
    positions: Int64s,
) -> _Fit:
    """Find the messages that a queue lacks: before its units, after its units, and at offsets whose
    unit is empty or does not name the message. A message before the first unit's message in the log
    may be from before a deletion of the queue, so it does not contradict any unit."""
    first, last = queue.unit(queue.min_offset), queue.unit(queue.max_offset - 1)
    fit = _Fit(np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.bool_))
    is_before, is_after = offsets < queue.min_offset, offsets >= queue.max_offset
    is_later = np.zeros(len(offsets), np.bool_)
    if first is not None:
        is_later = positions > first[0]
        fit.lacks[:] |= is_before & (positions < first[0])
        fit.contradicts[:] |= is_before & is_later
    if last is not None:
        fit.lacks[:] |= is_after & (positions > last[0])
        fit.contradicts[:] |= is_after & is_later & (positions < last[0])
    for row in np.flatnonzero(~(is_before | is_after)).tolist():
        offset, position = int(offsets[row]), int(positions[row])
        unit = queue.unit(offset)
        if unit is None or not 0 < unit[1] < BLANK_SIZE_FIELD:
            fit.lacks[row] = True
        elif is_later[row] or offset == queue.min_offset:
            is_named = unit[0] != position and _is_message(log, unit, key, offset)
            fit.lacks[row] = not is_named
            fit.contradicts[row] = is_named and is_later[row]
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
