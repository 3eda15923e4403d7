"""The reading half of TieredMessageStore: each read is answered by the tier, by the next store, or
by both as if they were one."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeVar

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageStore,
)
from tieredstore.contracts.plugin import PluginMessageStore
from tieredstore.disk.at_hand import read_at_hand
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.tier import routing
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.reading import Steps, Wait, run, run_async
from tieredstore.tier.trace.recorder import TraceRecorder

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage
    from tieredstore.tier.flat.message_file import FlatMessageFile

FALLBACKS = "rocketmq_tiered_store_get_message_fallback_total"
MESSAGES_OUT = "rocketmq_tiered_store_messages_out_total"

_FALLBACK_STATUSES = (
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    GetMessageStatus.OFFSET_TOO_SMALL,
)
_LOOKED_AT = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
T = TypeVar("T")
_log = logging.getLogger(__name__)


class TieredReads(PluginMessageStore):
    """Gets, offsets, times and key queries over both stores. Thread-safe.

    `tieredStorageLevel`, or a level of the topic's own, says which gets the tier answers; topics of
    which nothing is in the tier are always the next store's. recorder: is told of gets; executor:
    runs what coroutines would block on.
    """

    def __init__(
        self,
        next_store: MessageStore,
        config: StoreConfig,
        flat_files: FlatFileStore,
        fetcher: MessageStoreFetcher,
        topic_filter: TopicFilter,
        metrics: Metrics,
        recorder: TraceRecorder,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(next_store)
        self.flat_files = flat_files
        self.fetcher = fetcher
        self.topic_filter = topic_filter
        self.metrics = metrics
        self._config = config
        self._recorder = recorder
        self._executor = executor

    @property
    def _is_enabled(self) -> bool:
        return self._config.storage_level is not StorageLevel.DISABLE

    def _is_force(self, topic: str) -> bool:
        return self.topic_filter.find_level(topic) is StorageLevel.FORCE

    @property
    def _source(self) -> DispatchSource:
        return self.next_store.dispatch_source

    # Gets

    def get(self, request: GetRequest) -> GetMessageResult:
        return run(self._get_in_steps(request), self._executor)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        return await run_async(self._get_in_steps(request), self._executor)

    def _get_in_steps(self, request: GetRequest) -> Steps[GetMessageResult]:
        key, offset = request.key, request.offset
        if (yield self._look(lambda: self._reads_tier(key, offset, request.max_count))):
            result = yield from self._get_from_tier(request, offset)
            is_local = result.status in _FALLBACK_STATUSES or (
                result.status is GetMessageStatus.NO_MATCHED_MESSAGE
                and result.next_begin_offset == offset  # a hole of the tier
            )
            if not is_local or not (yield self._look(lambda: self._falls_back(request))):
                yield from self._merge(request, result)
                return self._record(request, result, from_tier=True)
        damage: Corrupt | None = None
        try:
            found: GetMessageResult = yield Wait(
                lambda: self.next_store.get(request), lambda: self.next_store.get_async(request)
            )
        except Corrupt as error:
            if not self._is_in_tier(key, offset):
                raise
            damage = error
        else:
            if not (yield self._look(lambda: self._has_gone_meanwhile(request, found))):
                return self._record(request, found, from_tier=False)
        result = yield from self._get_from_tier(request, offset + 1)
        if damage is not None:
            if result.status not in _LOOKED_AT:
                raise damage
            _log.warning("the tier answers in place of the local store: %s", damage)
        yield from self._merge(request, result)
        return self._record(request, result, from_tier=True)

    def _get_from_tier(self, request: GetRequest, local_from: int) -> Steps[GetMessageResult]:
        """Get from the tier, up to the first message from `local_from` on that a hole of the tier
        would pass over and the next store has."""
        result = yield from self.fetcher.get_in_steps(request)
        end = result.next_begin_offset
        if end - request.offset > len(result.messages):
            first = yield self._look(lambda: self._find_passed(request.key, local_from, end))
            if first < end:
                result.messages = [m for m in result.messages if m.queue_offset < first]
                result.next_begin_offset = first
                if not result.messages:
                    result.status = GetMessageStatus.NO_MATCHED_MESSAGE
        return result

    def _find_passed(self, key: QueueKey, begin: int, end: int) -> int:
        """The first queue offset in [begin, end) that is in a hole of the tier and in the next
        store; `end` when there is none."""
        file = self._find_file(key)
        if file is None or not (holes := file.holes):
            return end
        low, high = self._local_range(*key)
        for hole_begin, hole_end in holes:
            held = range(max(hole_begin, begin, low), min(hole_end, end, high))
            first = self._find_held(key, held)
            if first is not None:
                return first
        return end

    def _find_held(self, key: QueueKey, offsets: range) -> int | None:
        """The first of these queue offsets that the next store has, whose minimum lags behind what
        was deleted from its log; None when it has none."""
        first = bisect.bisect_left(offsets, True, key=lambda n: self._source.is_in_store(key, n))
        return offsets[first] if first < len(offsets) else None

    def _record(
        self, request: GetRequest, result: GetMessageResult, *, from_tier: bool
    ) -> GetMessageResult:
        if self._recorder.is_on:
            self._recorder.get(request, result, from_tier=from_tier)
        return result

    def _look(self, question: Callable[[], T]) -> Wait[T]:
        """The step of a question that the next store's files answer."""
        return Wait(question, lambda: read_at_hand(question, self._executor))

    def _has_gone_meanwhile(self, request: GetRequest, found: GetMessageResult) -> bool:
        """Whether the message that was asked for left the next store while that was read: its
        answer begins behind it then, and a reader would go past what the tier has."""
        if found.messages and found.messages[0].queue_offset == request.offset:
            return False
        return self._is_cold(request.key, request.offset)

    def _is_tiered(self, topic: str) -> bool:
        level = self.topic_filter.find_level(topic)
        return level is not StorageLevel.DISABLE and not self.topic_filter.is_filtered(topic)

    def _reads_tier(self, key: QueueKey, offset: int, count: int) -> bool:
        if not self._is_tiered(key.topic):
            return False
        file = self._find_file(key)
        if self._is_force(key.topic):
            end = file.consume_queue_commit_offset if file is not None else 0
            # What comes behind the tier's end is the next store's; its own end tells of no more.
            return offset < end or self.next_store.get_max_offset_in_queue(*key) <= end
        level = self.topic_filter.find_level(key.topic)
        return routing.reads_tier(level, self._source, file, key, offset, count) or (
            # A queue that the next store has lost: its answer sends readers to the beginning.
            file is not None
            and 0 < file.consume_queue_commit_offset <= offset
            and not self.next_store.get_max_offset_in_queue(*key)
        )

    def _is_cold(self, key: QueueKey, offset: int) -> bool:
        """Whether the tier has a message that the next store does not have."""
        return self._is_tiered(key.topic) and routing.reads_tier(
            StorageLevel.NOT_IN_DISK, self._source, self._find_file(key), key, offset
        )

    def _is_in_tier(self, key: QueueKey, offset: int) -> bool:
        """Whether the tier has that message, or a later one."""
        file = self._find_file(key) if self._is_tiered(key.topic) else None
        return file is not None and offset < file.consume_queue_commit_offset

    def _find_file(self, key: QueueKey) -> FlatMessageFile | None:
        return self.flat_files.get(key.topic, key.queue_id)

    def _falls_back(self, request: GetRequest) -> bool:
        """Whether the next store has the message that the tier has no answer to.

        A tier that begins later (it expired, or was switched on late) must not send a reader past
        messages that are on the disk.
        """
        if not self._source.is_in_store(request.key, request.offset):
            return False
        self.metrics.count(
            FALLBACKS, operation="get_message", topic=request.topic, group=request.group
        )
        return True

    def _merge(self, request: GetRequest, result: GetMessageResult) -> Steps[None]:
        """Give the tier's answer the minimum of both stores. The maximum stays the tier's, since it
        belongs to what was looked at."""
        if result.status is GetMessageStatus.FOUND:
            self.metrics.count(
                MESSAGES_OUT, len(result.messages), topic=request.topic, group=request.group
            )
        low, high = self._local_range(request.topic, request.queue_id)
        if low < high:
            result.min_offset = min(result.min_offset, low)
            if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
                expired = range(max(low, request.offset), min(high, result.next_begin_offset))
                first = yield self._look(lambda: self._find_held(request.key, expired))
                if first is not None:
                    result.next_begin_offset = first

    # Offsets and times

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first message that either store has; when none has one, the next store's
        answer, or where a queue ends that only the tier knows."""
        low, high = self._tier_range(topic, queue_id)
        local_low, local_high = self._local_range(topic, queue_id)
        if low == high and (local_high > 0 or not high):
            return local_low
        return low if local_low >= local_high else routing.find_earliest(low, local_low)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the next store's maximum, which assigns offsets; the tier's for a queue that only
        it knows."""
        local = self.next_store.get_max_offset_in_queue(topic, queue_id)
        return local if local > 0 else self._tier_range(topic, queue_id)[1] or local

    def _tier_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[first, behind last) offsets in the tier; equal when it has none."""
        file = self.flat_files.get(topic, queue_id) if self._is_tiered(topic) else None
        if file is None or not file.is_initialised:
            return 0, 0
        high = file.consume_queue_commit_offset
        return min(file.consume_queue_min_offset, high), high

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Find the queue offset for a time. LOWER: first message of both stores at or after the
        time, else the end. UPPER: the last at or before it, else the first message. Raises
        Unavailable when the tier is needed for that and cannot be read."""
        if self._is_tiered(topic):
            tier = self.fetcher.time_side(topic, queue_id)
            if tier is not None:
                sides = [tier, self._local_side(topic, queue_id)]
                found = routing.offset_by_time(sides, timestamp_ms, boundary)
                if found >= 0:
                    return found
        return self.next_store.get_offset_in_queue_by_time(topic, queue_id, timestamp_ms, boundary)

    def _local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[first, behind last) offsets in the next store; equal when it has none. No file is read
        for them."""
        store = self.next_store
        return (
            store.get_min_offset_in_queue(topic, queue_id),
            store.get_max_offset_in_queue(topic, queue_id),
        )

    def _local_side(self, topic: str, queue_id: int) -> routing.TimeSide:
        return routing.TimeSide(
            *self._local_range(topic, queue_id),
            lambda time_ms, boundary: self.next_store.get_offset_in_queue_by_time(
                topic, queue_id, time_ms, boundary
            ),
            lambda offset: self.next_store.get_message_store_timestamp(topic, queue_id, offset),
        )

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        local = self.next_store.get_earliest_message_time(topic, queue_id)
        if topic is None or queue_id is None:
            if not self._is_enabled:
                return local
            times = [file.min_store_timestamp_ms for file in self.flat_files.files()]
            return routing.find_earliest(local, *times)
        if not self._is_tiered(topic):
            return local
        return routing.find_earliest(local, self.fetcher.earliest_time(topic, queue_id))

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        if self._reads_tier(QueueKey(topic, queue_id), offset, 1):
            found = self.fetcher.store_timestamp(topic, queue_id, offset)
            if found >= 0:
                return found
        found = self.next_store.get_message_store_timestamp(topic, queue_id, offset)
        if found < 0 and self._is_cold(QueueKey(topic, queue_id), offset):
            return self.fetcher.store_timestamp(topic, queue_id, offset)  # it went meanwhile
        return found

    # Keys

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Find messages of both stores, each once, by queue and offset; at most `max_count`. FORCE
        asks the next store for what the tier did not find.

        When the tier cannot be read, what the next store found is the answer; Unavailable is
        raised when that is nothing.
        """
        if not self._is_tiered(topic):
            return self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)
        found: list[StoredMessage] = []
        tier_end_ms = end_ms
        local_earliest_ms = self.next_store.get_earliest_message_time()
        is_force = self._is_force(topic)
        is_local_asked = 0 <= local_earliest_ms <= end_ms
        if is_local_asked and not is_force:
            found = self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)
            # What has gone meanwhile may not have been found.
            local_earliest_ms = self.next_store.get_earliest_message_time()
            tier_end_ms = routing.tier_query_end_ms(end_ms, local_earliest_ms)
        problem: TieredStoreError | None = None
        if len(found) < max_count and begin_ms <= tier_end_ms:
            try:
                found += self.fetcher.query_message(topic, key, max_count, begin_ms, tier_end_ms)
            except TieredStoreError as error:
                problem = error
        if is_local_asked and is_force and len(found) < max_count:
            found += self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)
        if problem is not None:
            if not found:
                raise problem
            self.metrics.count(FALLBACKS, operation="query_message", topic=topic, group="")
            _log.warning("%s: query without the tier: %s", topic, problem)
        distinct: dict[tuple[int, int], StoredMessage] = {}
        for message in found:
            if len(distinct) < max_count:
                distinct.setdefault((message.queue_id, message.queue_offset), message)
        return [distinct[place] for place in sorted(distinct)]
