"""Reads from the commit log, the consume queues and the index, for stores of this and other
processes."""

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
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.batch_reads import get_batches
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.gathering import NOTHING_JOINED, read_joined
from tieredstore.local.log.record_check import QueuePlaces, check_message, check_stored_record
from tieredstore.local.queues.batch_consume_queue_store import (
    BatchConsumeQueue,
    BatchConsumeQueueStore,
)
from tieredstore.local.queues.interface import ConsumeQueueReader
from tieredstore.local.queues.topic_deletions import TopicDeletions
from tieredstore.local.queues.unit_search import offset_by_time
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS, UNIT_SIZE
from tieredstore.message.hashes import local_key_hash
from tieredstore.message.hashes import tags_code as tags_code_of
from tieredstore.message.layout import (
    MAGICS,
    MAX_STORE_TIMESTAMP_END,
    SYS_FLAG_POSITION,
    size_and_magic,
)
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, transaction_type
from tieredstore.skipped_records import SkippedRecords

NO_TIME_LIMIT_MS: Final = 2**63 - 1
READ_THREADS: Final = 4
"""Maximum number of threads for reads that coroutines wait for. Threads are created when they are
needed."""


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class StoreReads(MessageReader, ABC):
    """The reading methods of a MessageStore. Offsets are queue offsets unless they are named
    physical."""

    _batch_queues: BatchConsumeQueueStore

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self.unread_topics: frozenset[str] = frozenset()
        """Topics whose batch consume queues are not in files. Their messages are not read."""
        self._time_limit_ms = NO_TIME_LIMIT_MS  # later messages are not to be served yet
        self.skipped_records = SkippedRecords()
        """Counter of log records that are skipped because a client wrote them instead of a
        store."""
        self.topic_deletions = TopicDeletions(
            self.find_queue, lambda: self.commit_log, self.skipped_records
        )
        self._threads = ThreadPoolExecutor(READ_THREADS, "local-read")
        self._memory_bytes = _memory_bytes()

    @property
    @abstractmethod
    def commit_log(self) -> CommitLogReader:
        """The commit log that contains the records."""

    @abstractmethod
    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueueReader | None:
        """Return the queue, or None if it does not exist. Raises Invalid if the store is not
        open."""

    @abstractmethod
    def _candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of messages that may have a key, newest first."""

    @property
    def _in_memory_bytes(self) -> int:
        return self._memory_bytes * self._config.access_message_in_memory_max_ratio // 100

    @property
    def batch_topics(self) -> frozenset[str]:
        """Topics with batch consume queues (`queue.type=BatchCQ`)."""
        return self._batch_queues.topics | self.unread_topics

    def get(self, request: GetRequest) -> GetMessageResult:
        """Get messages from the requested offset on, with Java's rules and limits. Raises Corrupt
        if the first message does not match its unit."""
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
        if request.topic in self.unread_topics:
            raise Invalid(
                f"topic {request.topic}: its batch consume queues (BatchCQ) are not in files, and "
                "are not read; `tieredstore store recover --rebuild` makes files of them",
                topic=request.topic,
                queue_id=request.queue_id,
            )
        memory_bytes = self._in_memory_bytes

        def is_in_memory(physical_offset: int) -> bool:
            return log_end - physical_offset <= memory_bytes

        queue = self._find_batch_queue(request.topic, request.queue_id)
        try:
            return get_batches(queue, log, self._config, request, is_in_memory)
        except Unavailable:  # retried, because a file of the queue may just have expired
            return get_batches(queue, log, self._config, request, is_in_memory)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        """Get messages like `get`. If everything is in the page cache, the read runs in this
        thread, because handing it to another one would take longer."""
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
        expired_before = 0
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
                if not messages and physical_offset < expired_before:
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
                        else check_message(record, physical_offset, tags_code, places, current, log)
                    )
                except Corrupt as error:
                    if messages:
                        return
                    raise self._make_corrupt_error(
                        error, queue, current, physical_offset
                    ) from error
                if message is None:
                    if messages:
                        return  # messages after a gap come with a get that begins there
                    result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                    # A unit with a false position says nothing about the units after it.
                    expired_before = log.min_offset
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
            units_left -= len(units)
            wanted = units_left
            if not len(units) and not messages and result.next_begin_offset == request.offset:
                result.status = GetMessageStatus.OFFSET_FOUND_NULL  # deleted meanwhile
            if not len(units) or len(messages) >= max(max_count, 1):
                return
            if offset >= walk_end:  # of a file: the walk may continue while it has found nothing
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
        """Read the message that begins at `physical_offset`, or return None. With SYNC_FLUSH,
        messages that are not on disk do not exist yet. Raises Corrupt for a damaged message."""
        message = self._read_message(physical_offset)
        return None if message is None or not self._is_of_log(message) else message

    def _is_of_log(self, message: StoredMessage) -> bool:
        """Return whether a record was appended to the log, rather than written by a client in the
        body of a message. The unit at the record's queue offset must have the record's position. A
        record without a unit is accepted."""
        return self._find_position(message) in (None, message.physical_offset)

    def _find_position(self, message: StoredMessage) -> int | None:
        """Return the log position of the message at the record's queue offset, or None if the queue
        has no such offset."""
        if transaction_type(message.sys_flag) in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return None  # in no queue
        topic, queue_id, offset = message.topic, message.queue_id, message.queue_offset
        if topic in self.batch_topics:
            batches = None
            if topic not in self.unread_topics:
                batches = self._find_batch_queue(topic, queue_id)
            if batches is None or not batches.has(offset):
                return None
            return batches.unit(batches.find(offset)).physical_offset
        queue = self.find_queue(topic, queue_id)
        unit = None if queue is None else queue.unit(offset)
        return None if unit is None else unit[0]

    def _read_message(self, physical_offset: int) -> StoredMessage | None:
        """Read the record at `physical_offset`, a position from a queue or the index."""
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
            message = check_stored_record(record, physical_offset, log=log)
        except Corrupt as error:
            raise Corrupt(
                f"message at {physical_offset} of the commit log: {error}", offset=physical_offset
            ) from error
        if physical_offset + size > confirmed or message.store_timestamp_ms > self._time_limit_ms:
            return None
        return message

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        return await read_at_hand(
            lambda: self.look_message_by_offset(physical_offset), self._threads
        )

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        queue = self._find_any_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        queue = self._find_any_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the queue offset for a store time, like
        `MessageStore.get_offset_in_queue_by_time`. Returns 0 for an unknown queue."""
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
        if topic is None or queue_id is None:
            log = self.commit_log
            first = log.min_offset
            return record_time(log, first) if first < log.confirm_offset else -1
        queue = self._find_any_queue(topic, queue_id)
        return -1 if queue is None else self._time_of_message(queue, queue.min_offset)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
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
        """Find messages of a topic with a key or UNIQ_KEY and a store time within [begin, end].
        Returns the newest `max_count` (at most 64 by default), in the order of the log."""
        limit = min(max_count, self._config.max_msgs_num_batch)
        found: dict[int, StoredMessage] = {}
        deleted_before: int | None = None
        if limit <= 0 or not key:
            return []
        for physical_offset in self._candidates(local_key_hash(topic, key), begin_ms, end_ms):
            if physical_offset in found:
                continue
            message = self._read_message(physical_offset)
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
        self.find_queue(topic, queue_id)  # raises if the store is not open, and refreshes the view
        return self._batch_queues.get(QueueKey(topic, queue_id))

    def _find_any_queue(
        self, topic: str, queue_id: int
    ) -> ConsumeQueueReader | BatchConsumeQueue | None:
        if topic in self.batch_topics:
            return self._find_batch_queue(topic, queue_id)
        return self.find_queue(topic, queue_id)


def record_time(log: CommitLogReader, physical_offset: int) -> int:
    """Read the store time (epoch ms) of the record at `physical_offset`, or -1 if no record begins
    there."""
    data = log.get(physical_offset, MAX_STORE_TIMESTAMP_END)
    if data is None:
        return -1
    head = StoredMessage(data, 0, len(data))
    return head.store_timestamp_ms if head.magic in MAGICS else -1
