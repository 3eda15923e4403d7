"""Reads of the tier through the read-ahead cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import msgspec

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageReader,
)
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.message.record import StoredMessage
from tieredstore.metrics import LATENCY_BUCKETS_MS, Metrics
from tieredstore.tier.fetch.block_fetcher import BlockFetcher, report_failure
from tieredstore.tier.fetch.memory_limit import usable_memory_bytes
from tieredstore.tier.fetch.queries import query_message
from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index.service import IndexStoreService
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.reading import Reading, Steps, run, run_async
from tieredstore.tier.routing import TimeSide

API_LATENCY = "rocketmq_tiered_store_api_latency"
LOOKED_AT = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)

_log = logging.getLogger(__name__)


class MessageStoreFetcher(MessageReader):
    """Gets, time searches and key queries on the tier only. Thread-safe. Each read is a generator
    of steps, so that blocking calls and coroutines share one implementation.

    `index`: key index, or None to disable key queries.
    `executor`: runs concurrent reads, and the blocking parts of coroutines (None: the event loop's
    own executor).
    `ahead`: executor that reads ahead for sequential readers (None: no read-ahead).
    """

    def __init__(
        self,
        config: StoreConfig,
        flat_files: FlatFileStore,
        index: IndexStoreService | None,
        metadata: MetadataStore,
        topic_filter: TopicFilter,
        clock: Clock,
        metrics: Metrics,
        executor: Executor | None = None,
        ahead: Executor | None = None,
    ) -> None:
        self._config = config
        self._flat_files = flat_files
        self._index = index
        self._metadata = metadata
        self._topic_filter = topic_filter
        self._metrics = metrics
        self._executor = executor
        limit_bytes = config.read_ahead_cache_size_bytes or int(
            usable_memory_bytes() * config.read_ahead_cache_size_threshold_rate
        )
        self.cache = ReadAheadCache(limit_bytes, config.read_ahead_cache_expire_duration_ms, clock)
        self._blocks = BlockFetcher(config, self.cache, clock, metrics, executor, ahead)
        self.unreadable = self._blocks.unreadable
        # Bytes of an object store are never rewritten, and each read of them waits for a network.
        self._reads_wait = not flat_files.provider.capabilities.rewritable

    # Messages

    def get(self, request: GetRequest) -> GetMessageResult:
        """Get the messages that the filter accepts, starting at the requested queue offset.
        OFFSET_FOUND_NULL means that the backend failed and the caller should retry. `fault`
        describes lost bytes. Raises only Invalid, for a count below 1."""
        return run(self.get_in_steps(request), self._executor)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        """Get messages like `get`, without blocking the event loop."""
        return await run_async(self.get_in_steps(request), self._executor)

    def get_in_steps(self, request: GetRequest) -> Steps[GetMessageResult]:
        """Get messages like `get`, as a generator of steps that the caller runs."""
        if request.max_count < 1:
            raise Invalid(
                f"{request.topic}/{request.queue_id}: get of {request.max_count} messages"
            )
        begin = time.perf_counter()
        try:
            result = yield from self._get(request)
        finally:  # `_time_operation` takes longer than the read of a cached message
            self._observe(begin, "get_message", request.topic, group=request.group)
        if self._config.record_get_message_result:
            _log_result(request, result)
        return result

    def _get(self, request: GetRequest, *, goes_on: bool = True) -> Steps[GetMessageResult]:
        """Get messages as a generator of steps. `goes_on`: whether another fetch may follow if
        cached blocks do not contain enough messages."""
        key, offset = request.key, request.offset
        file = self._flat_files.get(*key)
        if file is None:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, offset)
        try:
            minimum = yield from file.min_offset()
        except TieredStoreError as error:
            report_failure(self._metrics, key, offset, error)
            return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, offset)
        maximum = file.consume_queue_commit_offset
        refusal = _refuse(offset, minimum, maximum)
        if refusal is not None:
            status, following = refusal
            return GetMessageResult(status, following, minimum, maximum)
        if fault := self.unreadable.find(key, offset):
            return _find_null(offset, minimum, maximum, fault)
        uses_cache = self._config.read_ahead_cache_enable
        block = self.cache.find(key, offset, file) if uses_cache else None
        is_cached = block is not None
        if block is None:
            block = yield from self._blocks.fetch(file, request, maximum)
            if block is None:
                return _find_null(offset, minimum, maximum, self.unreadable.find(key, offset))
            self.unreadable.note_read(key, offset)
        result, last = self._collect(request, block, minimum, maximum)
        if self._reads_wait or last.was_waited_for:
            self._blocks.fetch_ahead(file, last, maximum)
        window_end = offset + self._config.read_ahead_message_count_threshold
        if (
            is_cached
            and goes_on
            and result.next_begin_offset == last.end < min(maximum, window_end)
        ):
            yield from self._complete(request, result)
        return result

    def _complete(self, request: GetRequest, result: GetMessageResult) -> Steps[None]:
        """Add the messages of one more fetch to a result from cached blocks. Otherwise a get that
        begins in a small block would return only a few messages."""
        wanted = request.max_count - len(result.messages)
        size_bytes, limit_bytes = result.size_bytes, request.limit_bytes
        enough_bytes = min(self._config.max_transfer_bytes_in_memory, limit_bytes)
        if wanted <= 0 or size_bytes >= enough_bytes:
            return
        rest = yield from self._get(
            msgspec.structs.replace(
                request,
                offset=result.next_begin_offset,
                max_count=wanted,
                max_bytes=limit_bytes - size_bytes,
            ),
            goes_on=False,
        )
        if rest.status not in LOOKED_AT:
            return  # it has expired: the next get reports that, and the other store
        following = max(rest.next_begin_offset, result.next_begin_offset)
        for message in rest.messages:
            is_first = not result.messages
            size_bytes += message.size
            if size_bytes - message.size >= enough_bytes or (
                size_bytes > limit_bytes and not is_first
            ):
                following = message.queue_offset
                break
            result.messages.append(message)
            result.status = GetMessageStatus.FOUND
        result.next_begin_offset = following

    def _collect(
        self, request: GetRequest, block: Block, minimum: int, maximum: int
    ) -> tuple[GetMessageResult, Block]:
        """Collect messages from a block and the cached blocks after it, up to
        `readAheadMessageCountThreshold` queue offsets. Returns the result and the last of these
        blocks."""
        offset, max_count, limit_bytes = request.offset, request.max_count, request.limit_bytes
        window_end = offset + self._config.read_ahead_message_count_threshold
        max_bytes = min(self._config.max_transfer_bytes_in_memory, limit_bytes)
        messages: list[StoredMessage] = []
        following = offset
        size_bytes = 0
        current: Block | None = block
        while current is not None:
            block = current
            taken = current.take(
                following,
                max_count - len(messages),
                max_bytes - size_bytes,
                request.message_filter,
            )
            messages += taken.messages
            following = taken.next_offset
            size_bytes += taken.size_bytes
            if following == current.end:
                self.cache.read_to_end(current)
            if (
                len(messages) >= max_count
                or size_bytes >= max_bytes
                or not current.end <= following < min(maximum, window_end)
            ):
                break
            current = self.cache.find_next(current)
        if size_bytes > limit_bytes and len(messages) > 1:  # only the last one reaches a limit
            following = messages.pop().queue_offset
        status = GetMessageStatus.FOUND if messages else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, following, minimum, maximum, messages), block

    # Times

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the queue offset for a store time. LOWER: the first offset at or after the time,
        otherwise the end. UPPER: the last offset at or before the time, otherwise the minimum.
        Returns -1 if the queue is not in the tier. Raises Unavailable, Corrupt."""
        with self._time_operation("get_offset_by_time", topic):
            file = self._flat_files.get(topic, queue_id)
            if file is None or not file.is_initialised:
                return -1
            return run(file.offset_by_time(timestamp_ms, boundary))

    def time_side(self, topic: str, queue_id: int) -> TimeSide | None:
        """Return the tier's part of a time search that covers both stores, or None if the tier has
        no messages of the queue. Methods of the result raise Unavailable and Corrupt."""
        file = self._flat_files.get(topic, queue_id)
        if file is None or not file.is_initialised:
            return None
        low, high = file.consume_queue_min_offset, file.consume_queue_commit_offset
        if low >= high:
            return None
        return TimeSide(
            low,
            high,
            lambda time_ms, boundary: self.offset_by_time(topic, queue_id, time_ms, boundary),
            lambda offset: run(file.store_timestamp_at(offset)),
            file.holes,
        )

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message (epoch ms), or -1 if the message is not in the tier or
        cannot be read."""
        with self._time_operation("get_time_by_offset", topic):
            file = self._flat_files.get(topic, queue_id)
            return -1 if file is None else self._read_time(file, offset, unreadable=-1)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message of a queue in the tier (epoch ms), or -1 if
        the queue is empty."""
        with self._time_operation("get_earliest_message_time", topic):
            file = self._flat_files.get(topic, queue_id)
            if file is None:
                return -1
            return self._read_time(file, None, unreadable=file.min_store_timestamp_ms)

    def _read_time(self, file: FlatMessageFile, offset: int | None, *, unreadable: int) -> int:
        """Return the store time of the message at `offset` (None: the first message), or -1 if it
        does not exist. `unreadable`: result if the time cannot be read."""
        try:
            minimum = file.consume_queue_min_offset
            at = minimum if offset is None else offset
            if minimum <= at < file.consume_queue_commit_offset:
                return run(file.store_timestamp_at(at))
        except TieredStoreError as error:
            at = -1 if offset is None else offset
            report_failure(self._metrics, QueueKey(file.topic, file.queue_id), at, error)
            return unreadable
        return -1

    # Keys

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Return messages of a topic with a key or UNIQ_KEY and a store time within [begin, end],
        ordered by queue and offset. Messages that match only the hash of the key are omitted.
        Raises Unavailable, Corrupt."""
        with self._time_operation("query_message", topic):
            reading = self.query_reading(topic, key, max_count, begin_ms, end_ms)
            return run(reading, self._executor)

    def query_reading(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> Reading[list[StoredMessage]]:
        """Query messages like `query_message`, as a generator of reads that the caller runs."""
        if self._index is None or self._topic_filter.is_filtered(topic):
            return _read_nothing()
        return query_message(
            self._index, self._metadata, self._flat_files, topic, key, max_count, begin_ms, end_ms
        )

    # Metrics

    @contextmanager
    def _time_operation(self, operation: str, topic: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._observe(begin, operation, topic)

    def _observe(self, begin: float, operation: str, topic: str, **labels: object) -> None:
        elapsed_ms = (time.perf_counter() - begin) * 1000
        self._metrics.observe(
            API_LATENCY, elapsed_ms, LATENCY_BUCKETS_MS, operation=operation, topic=topic, **labels
        )


def _log_result(request: GetRequest, result: GetMessageResult) -> None:
    _log.info(
        "get: group %s, %s/%d at %d: %s, next %d, %d messages, [%d, %d)",
        request.group,
        request.topic,
        request.queue_id,
        request.offset,
        result.status.name,
        result.next_begin_offset,
        len(result.messages),
        result.min_offset,
        result.max_offset,
    )


def _refuse(offset: int, minimum: int, maximum: int) -> tuple[GetMessageStatus, int] | None:
    """Return the status and next offset of a get outside [minimum, maximum), or None for a get
    inside."""
    if maximum <= 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, offset
    if offset < minimum:
        return GetMessageStatus.OFFSET_TOO_SMALL, minimum
    if offset == maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, maximum
    if offset > maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
    return None


def _find_null(offset: int, minimum: int, maximum: int, fault: str) -> GetMessageResult:
    status = GetMessageStatus.OFFSET_FOUND_NULL
    return GetMessageResult(status, offset, minimum, maximum, fault=fault)


def _read_nothing() -> Reading[list[StoredMessage]]:
    yield from ()
    return []
