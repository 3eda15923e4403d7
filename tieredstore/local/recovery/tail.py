"""Where the log of a cleanly stopped store ends."""

from __future__ import annotations

from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.record_check import check_stored_record
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.message.columns.records import walk_records
from tieredstore.message.layout import is_blank_record


def find_tail(log: CommitLog, queues: ConsumeQueueStoreInterface) -> int:
    """Find the end of the last valid record of the log (bytes).

    The walk begins at the last message that the consume queues know; when that one is damaged, at
    the beginning of its file. A last record that is not whole is no part of the log. Raises Corrupt
    when a damaged record has valid ones behind it: cutting there would lose them.
    """
    if log.is_empty:
        return 0
    start = _find_last_known(log, queues)
    if start is None:
        known_end = min(max(queues.max_physical_offset - 1, log.min_offset), log.max_offset - 1)
        start = known_end - known_end % log.file_size
    offset = start
    while offset < log.max_offset:
        chunk = log.rest_of_file(offset)
        walk = walk_records(chunk)
        good_end = _check_end(chunk, offset, walk.positions.tolist())
        if good_end < offset + walk.next_position:
            return _refuse_hole(log, queues, good_end)
        offset = good_end
        inside = walk.next_position
        if inside >= len(chunk):
            continue
        if not is_blank_record(chunk, inside):
            return _refuse_hole(log, queues, offset)
        offset += len(chunk) - inside
        if offset < log.max_offset and not any(log.rest_of_file(offset)[:8]):
            break
    return offset


def _find_last_known(log: CommitLog, queues: ConsumeQueueStoreInterface) -> int | None:
    """Where the last message that a queue knows begins, if it is there and valid."""
    last = queues.find_last_message()
    if last is None:
        return None if queues.max_physical_offset > log.min_offset else log.min_offset
    begin, size = last
    if begin + size <= log.min_offset:
        return log.min_offset
    record = log.get(begin, size)
    return begin if record is not None and _is_valid(record, begin) else None


def _check_end(chunk: memoryview, offset: int, positions: list[int]) -> int:
    """Behind the last of these records, or behind the last good one when the last is damaged."""
    if not positions:
        return offset
    for position in reversed(positions):
        size = int.from_bytes(chunk[position : position + 4], "big")
        if _is_valid(chunk[position : position + size], offset + position):
            return offset + position + size
    return offset + positions[0]


def _refuse_hole(log: CommitLog, queues: ConsumeQueueStoreInterface, offset: int) -> int:
    """The offset, as the tail, unless a valid message that a queue knows lies behind it."""
    for queue in queues.find_queues_after(offset):
        for number in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            unit = queue.unit(number)
            if unit is None or unit[0] <= offset:
                break
            record = log.get(unit[0], unit[1])
            if record is not None and _is_valid(record, unit[0]):
                raise Corrupt(
                    f"{log.path_of(offset)}: the record at {offset} is damaged, but message "
                    f"{number} of {queue.topic}/{queue.queue_id} at {unit[0]} is not: nothing is "
                    "cut off, open the store read-only",
                    path=str(log.path_of(offset)),
                    offset=offset,
                )
    return offset


def _is_valid(record: memoryview, physical_offset: int) -> bool:
    try:
        check_stored_record(record, physical_offset)
    except Corrupt:
        return False
    return True
