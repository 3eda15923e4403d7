"""Serving reads from commit log, consume queues and index, of owned and of foreign stores."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageReader,
)
from tieredstore.disk.at_hand import read_at_hand
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.local.batch_reads import get_batches
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.joined_read import NOTHING_JOINED, read_joined
from tieredstore.local.log.record_check import QueuePlaces, check_message, check_stored_record
from tieredstore.local.queues.batch_consume_queue import BatchConsumeQueue
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueReader
from tieredstore.local.queues.time_search import offset_by_time
from tieredstore.local.queues.topic_deletions import TopicDeletions
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS, UNIT_SIZE
from tieredstore.message.hashes import local_key_hash
from tieredstore.message.hashes import tags_code as tags_code_of
from tieredstore.message.ids import parse_offset_message_id
from tieredstore.message.layout import (
    MAGICS,
    MAX_STORE_TIMESTAMP_END,
    SYS_FLAG_POSITION,
    size_and_magic,
)
from tieredstore.message.record import StoredMessage

NO_TIME_LIMIT_MS: Final = 2**63 - 1
READ_THREADS: Final = 4
"""Threads, made as needed, for what coroutines would wait for."""


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class StoreReads(MessageReader, ABC):
    """The reading half of a MessageStore. Offsets are queue offsets unless named physical."""

    _batch_queues: BatchConsumeQueueStore

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._time_limit_ms = NO_TIME_LIMIT_MS  # later messages are not to be served yet
        self.topic_deletions = TopicDeletions(self.find_queue, lambda: self.commit_log)
        self._threads = ThreadPoolExecutor(READ_THREADS, "local-read")
        self._memory_bytes = _memory_bytes()

    @property
    @abstractmethod
    def commit_log(self) -> CommitLogReader:
        """Where the records are."""

    @abstractmethod
    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        """Return the queue, None when there is none. Raises Invalid when the store is not open."""

    @abstractmethod
    def _candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have a key, newest first."""

    @property
    def _in_memory_bytes(self) -> int:
        return self._memory_bytes * self._config.access_message_in_memory_max_ratio // 100

    @property
    def batch_topics(self) -> frozenset[str]:
        """Topics with batch consume queues (`queue.type=BatchCQ`)."""
        return self._batch_queues.topics

    def get(self, request: GetRequest) -> GetMessageResult:
        """Get messages from an offset on, by Java's rules and limits. Raises Corrupt for a message
        that is not what its unit says, once it is the first one asked for."""
        offset = request.offset
        if request.topic in self.batch_topics:
            return self._get_batches(request)
        queue = self.find_queue(request.topic, request.queue_id)
        if queue is None or queue.max_offset == 0:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
        minimum, maximum = queue.min_offset, queue.max_offset
        if offset < minimum:
            status, next_offset = GetMessageStatus.OFFSET_TOO_SMALL, minimum
        elif offset == maximum:
            status, next_offset = GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
        elif offset > maximum:
            status, next_offset = GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
        else:
            result = GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, minimum, maximum)
            self._collect(result, queue, request)
            return result
        return GetMessageResult(status, next_offset, minimum, maximum)

    def _get_batches(self, request: GetRequest) -> GetMessageResult:
        log, log_end = self.commit_log, self.commit_log.readable_offset

        memory_bytes = self._in_memory_bytes

        def is_in_memory(physical_offset: int) -> bool:
            return log_end - physical_offset <= memory_bytes

        queue = self._find_batch_queue(request.topic, request.queue_id)
        try:
            return get_batches(queue, log, self._config, request, is_in_memory)
        except Unavailable:  # once more: a file of the queue may just have expired
            return get_batches(queue, log, self._config, request, is_in_memory)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        """Get as `get` does, in this thread where all is in the page cache: such a read takes less
        time than handing it to another one."""
        return await read_at_hand(lambda: self.get(request), self._threads)

    def _collect(
        self, result: GetMessageResult, queue: ConsumeQueueReader, request: GetRequest
    ) -> None:
        offset, max_count, message_filter = (
            request.offset,
            request.max_count,
            request.message_filter,
        )
        limit_bytes = request.limit_bytes
        config = self._config
        log = self.commit_log
        log_end, memory_bytes = log.readable_offset, self._in_memory_bytes
        units_left = max(config.max_filter_message_size_bytes // UNIT_SIZE, max_count)
        messages = result.messages
        walk_end = queue.roll_next_file(offset)
        files_left = config.travel_cq_file_num
        places = QueuePlaces(queue.topic, queue.queue_id)
        total_bytes = 0
        missing_before = -1
        wanted = min(units_left, max(max_count, 32))
        while units_left > 0:
            units = queue.read_units(offset, min(wanted, units_left))
            rows = units.tolist()
            joined = NOTHING_JOINED if message_filter else read_joined(log, rows[:max_count])
            for physical_offset, size, tags_code in rows:
                if messages:
                    in_memory = log_end - physical_offset <= memory_bytes
                    max_bytes, most = (
                        (config.max_transfer_bytes_in_memory, config.max_transfer_count_in_memory)
                        if in_memory
                        else (config.max_transfer_bytes_in_disk, config.max_transfer_count_in_disk)
                    )
                    if len(messages) >= min(max_count, most) or total_bytes + size > min(
                        max_bytes, limit_bytes
                    ):
                        return
                current, offset = offset, offset + 1
                if physical_offset < missing_before:
                    result.next_begin_offset = offset
                    continue
                is_address = tags_code <= MIN_EXTENDED_ADDRESS
                if (
                    message_filter
                    and not is_address
                    and not message_filter.is_matched_by_consume_queue(tags_code)
                ):
                    result.next_begin_offset = offset
                    continue
                try:
                    record = joined.find(physical_offset, size)
                    if record is None:
                        record = log.get(physical_offset, size)
                    message = (
                        None
                        if record is None
                        else check_message(record, physical_offset, tags_code, places, current)
                    )
                except Corrupt as error:
                    if messages:
                        return
                    raise self._make_corrupt_error(
                        error, queue, current, physical_offset
                    ) from error
                if message is None:
                    if messages:
                        return  # what is behind a gap comes with an answer that begins there
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    missing_before = physical_offset - physical_offset % log.file_size
                    missing_before += log.file_size
                    result.next_begin_offset = offset
                    continue
                result.next_begin_offset = offset
                if is_address:
                    message.tags_code = tags_code_of(message.tags)
                if message_filter and not (
                    message_filter.is_matched_by_consume_queue(message.tags_code)
                    and message_filter.is_matched_by_commit_log(message)
                ):
                    continue
                messages.append(message)
                total_bytes += size
                result.status = GetMessageStatus.FOUND
                missing_before = -1
            units_left -= len(units)
            wanted = units_left
            if not len(units) and not messages and result.next_begin_offset == request.offset:
                result.status = GetMessageStatus.OFFSET_FOUND_NULL  # deleted meanwhile
            if not len(units) or len(messages) >= max(max_count, 1):
                return
            if offset >= walk_end:  # of a file: the walk may go on while it has found nothing
                files_left -= 1
                if messages or files_left <= 0:
                    return
                walk_end = queue.roll_next_file(offset)

    def _make_corrupt_error(
        self, error: Corrupt, queue: ConsumeQueueReader, offset: int, physical_offset: int
    ) -> Corrupt:
        return Corrupt(
            f"message {offset} of {queue.topic}/{queue.queue_id} (unit in "
            f"{queue.path_of(offset)}) at {physical_offset} of the commit log: {error}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=offset,
            path=queue.path_of(offset),
        )

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        """Read the message that starts at a byte of the commit log; None when none does. Raises
        Corrupt for a damaged one. Under SYNC_FLUSH a message that is not on disk is not there."""
        log = self.commit_log
        confirmed = log.confirm_offset
        if physical_offset >= confirmed:
            return None
        data = log.get(physical_offset, SYS_FLAG_POSITION)
        if data is None:
            return None
        size, magic = size_and_magic(data, 0, len(data))
        if magic not in MAGICS or StoredMessage(data, 0, size).physical_offset != physical_offset:
            return None
        record = log.get(physical_offset, size)
        try:
            if record is None:
                raise Corrupt(f"size: expected a record within its file, found {size}")
            message = check_stored_record(record, physical_offset)
        except Corrupt as error:
            raise Corrupt(
                f"message at {physical_offset} of the commit log: {error}", offset=physical_offset
            ) from error
        if physical_offset + size > confirmed or message.store_timestamp_ms > self._time_limit_ms:
            return None
        return message

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        """Read as `look_message_by_offset` does, and wait as `get_async`."""
        return await read_at_hand(
            lambda: self.look_message_by_offset(physical_offset), self._threads
        )

    def look_message_by_id(self, offset_message_id: str) -> StoredMessage | None:
        """Read the message with an offset message id, None when this store has none. Raises Invalid
        for a text that is no such id."""
        _, _, physical_offset = parse_offset_message_id(offset_message_id)
        message = self.look_message_by_offset(physical_offset)
        if message is None or message.offset_message_id != offset_message_id.upper():
            return None
        return message

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue, 0 for an unknown one."""
        queue = self._find_any_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset behind the last message that can be read, 0 for an unknown queue."""
        queue = self._find_any_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """See `time_search`; 0 for an unknown queue."""
        if topic in self.batch_topics:
            batches = self._find_batch_queue(topic, queue_id)
            upper = boundary is BoundaryType.UPPER
            return 0 if batches is None else batches.find_by_time(timestamp_ms, upper=upper)
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return 0
        return offset_by_time(
            lambda offset: queue.store_time(offset, self._record_time),
            queue.min_offset,
            queue.max_offset,
            timestamp_ms,
            boundary,
        )

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        """Read the store time of the first message of a queue, or of the commit log; -1 without
        one."""
        if topic is None or queue_id is None:
            log = self.commit_log
            first = log.min_offset
            return record_time(log, first) if first < log.confirm_offset else -1
        queue = self._find_any_queue(topic, queue_id)
        return -1 if queue is None else self._time_of_message(queue, queue.min_offset)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Read the store time of a message, -1 when it is not there."""
        queue = self._find_any_queue(topic, queue_id)
        return -1 if queue is None else self._time_of_message(queue, offset)

    def _time_of_message(self, queue: ConsumeQueueReader | BatchConsumeQueue, offset: int) -> int:
        if isinstance(queue, BatchConsumeQueue):
            return queue.store_time(offset)
        unit = queue.unit(offset)
        return -1 if unit is None else self._record_time(unit[0])

    def _record_time(self, physical_offset: int) -> int:
        return record_time(self.commit_log, physical_offset)

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Find messages of a topic with a key or UNIQ_KEY and a store time within [begin, end]: the
        newest `max_count` (64 by default at most) of them, in the order of the log."""
        limit = min(max_count, self._config.max_msgs_num_batch)
        found: dict[int, StoredMessage] = {}
        deleted_before: int | None = None
        if limit <= 0 or not key:
            return []
        for physical_offset in self._candidates(local_key_hash(topic, key), begin_ms, end_ms):
            if physical_offset in found:
                continue
            message = self.look_message_by_offset(physical_offset)
            if (
                message is not None
                and begin_ms <= message.store_timestamp_ms <= end_ms
                and message.topic == topic
                and (message.uniq_key == key or key in message.keys)
            ):
                if deleted_before is None:
                    deleted_before = self.topic_deletions.find_position(topic)
                if physical_offset < deleted_before:
                    continue
                found[physical_offset] = message
                if len(found) >= limit:
                    break
        return [found[physical_offset] for physical_offset in sorted(found)]

    def _find_batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue | None:
        self.find_queue(topic, queue_id)  # raises when the store is not open; sees what is new
        return self._batch_queues.get(QueueKey(topic, queue_id))

    def _find_any_queue(
        self, topic: str, queue_id: int
    ) -> ConsumeQueueReader | BatchConsumeQueue | None:
        if topic in self.batch_topics:
            return self._find_batch_queue(topic, queue_id)
        return self.find_queue(topic, queue_id)


def record_time(log: CommitLogReader, physical_offset: int) -> int:
    """Read the store time (epoch ms) of the record at a byte of the log; -1 when there is none."""
    data = log.get(physical_offset, MAX_STORE_TIMESTAMP_END)
    if data is None:
        return -1
    head = StoredMessage(data, 0, len(data))
    return head.store_timestamp_ms if head.magic in MAGICS else -1
