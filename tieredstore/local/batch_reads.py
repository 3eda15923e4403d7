"""Gets from batch consume queues, whose records hold several messages each.

As in Java, a get returns whole records. The first record may begin before the requested offset.
`message.batch.inner_messages` splits records into messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.record_check import check_stored_record
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueue
from tieredstore.message.consume_queue import BATCH_UNIT_SIZE, BatchUnit
from tieredstore.message.record import StoredMessage

_UNITS_AT_ONCE: Final = 64


def get_batches(
    queue: BatchConsumeQueue | None,
    log: CommitLogReader,
    config: StoreConfig,
    request: GetRequest,
    is_in_memory: Callable[[int], bool],
) -> GetMessageResult:
    """Return records, starting with the one that contains the requested queue offset. `max_count`
    limits the number of messages in them. `is_in_memory`: returns whether the record at a log
    offset is near the end of the log. Raises Corrupt if the first record does not match its
    unit."""
    if queue is None or (maximum := queue.max_offset) == 0:
        return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    offset, minimum = request.offset, queue.min_offset
    if queue.first >= queue.end:
        minimum = maximum  # all records have expired
    if offset < minimum:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
    if offset >= maximum:
        status = GetMessageStatus.OFFSET_OVERFLOW_ONE
        if offset > maximum:
            status, offset = GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
        return GetMessageResult(status, offset, minimum, maximum)
    result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
    _collect(result, queue, log, config, request, is_in_memory)
    return result


def _collect(
    result: GetMessageResult,
    queue: BatchConsumeQueue,
    log: CommitLogReader,
    config: StoreConfig,
    request: GetRequest,
    is_in_memory: Callable[[int], bool],
) -> None:
    number = queue.find(request.offset)
    units_left = max(config.max_filter_message_size_bytes // BATCH_UNIT_SIZE, request.max_count)
    message_filter = request.message_filter
    total_bytes = message_count = 0
    while units_left > 0:
        units = queue.read_units(number, min(units_left, _UNITS_AT_ONCE))
        if not len(units):
            return
        for row in units.tolist():
            unit = BatchUnit(*row)
            if result.messages:
                max_bytes, most = (
                    (config.max_transfer_bytes_in_memory, config.max_transfer_count_in_memory)
                    if is_in_memory(unit.physical_offset)
                    else (config.max_transfer_bytes_in_disk, config.max_transfer_count_in_disk)
                )
                if (
                    message_count + unit.batch_size > request.max_count
                    or message_count >= most
                    or total_bytes + unit.size > min(max_bytes, request.limit_bytes)
                ):
                    return
            behind = unit.base_offset + unit.batch_size
            if message_filter and not message_filter.is_matched_by_consume_queue(unit.tags_code):
                result.next_begin_offset = behind
                continue
            record = log.get(unit.physical_offset, unit.size)
            if record is None:
                if not result.messages:
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                result.next_begin_offset = behind
                continue
            try:
                message = _check_record(record, unit, queue, log)
            except Corrupt as error:
                if result.messages:
                    return
                raise Corrupt(
                    f"messages from {unit.base_offset} on of {queue.topic}/{queue.queue_id} (unit "
                    f"in {queue.path_of(number)}) at {unit.physical_offset} of the commit log: "
                    f"{error}",
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    offset=unit.base_offset,
                    path=queue.path_of(number),
                ) from error
            result.next_begin_offset = behind
            if message_filter and not message_filter.is_matched_by_commit_log(message):
                continue
            result.messages.append(message)
            result.status = GetMessageStatus.FOUND
            total_bytes += unit.size
            message_count += unit.batch_size
        number += len(units)
        units_left -= len(units)


def _check_record(
    record: memoryview, unit: BatchUnit, queue: BatchConsumeQueue, log: CommitLogReader
) -> StoredMessage:
    message = check_stored_record(record, unit.physical_offset, tags_code=unit.tags_code, log=log)
    if message.topic != queue.topic or message.queue_id != queue.queue_id:
        raise Corrupt(
            f"expected a record of {queue.topic}/{queue.queue_id}, found one of "
            f"{message.topic}/{message.queue_id}"
        )
    return message
