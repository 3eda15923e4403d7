"""Reads of TieredMessageStore. The tier, the next store, or both together answer a read."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

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
from tieredstore.message.lite import LITE_PREFIX
from tieredstore.message.record import StoredMessage
from tieredstore.metrics import Metrics
from tieredstore.tier import routing
from tieredstore.tier.fetch.fetcher import LOOKED_AT, MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.lite.queues import LightQueues
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.read_plan import ReadPlan, ReadSource, plan_read, reads_tier
from tieredstore.tier.reading import Steps, Wait, run, run_async
from tieredstore.tier.trace.service import TraceRecorder

FALLBACKS = "rocketmq_tiered_store_get_message_fallback_total"
MESSAGES_OUT = "rocketmq_tiered_store_messages_out_total"

_UNANSWERED = (
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
    GetMessageStatus.OFFSET_TOO_SMALL,
)
T = TypeVar("T")
_log = logging.getLogger(__name__)


class TieredReads(PluginMessageStore):
    """Gets, offsets, times and key queries over both stores. Thread-safe. `tieredStorageLevel`, or
    a topic's own level, decides which gets go to the tier. Topics that are never in the tier are
    read from the next store.

    `recorder`: records gets.
    `light`: answers reads of light queues.
    `executor`: runs the blocking parts of coroutines.
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
        light: LightQueues,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(next_store)
        self._light = light
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

    @property
    def _source(self) -> DispatchSource:
        return self.next_store.dispatch_source

    # Gets

    def get(self, request: GetRequest) -> GetMessageResult:
        return run(self._choose(request), self._executor)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        return await run_async(self._choose(request), self._executor)

    def _is_light(self, topic: str) -> bool:
        return topic.startswith(LITE_PREFIX) and self._light.is_tiered(topic)

    def _choose(self, request: GetRequest) -> Steps[GetMessageResult]:
        is_light = self._is_light(request.topic)
        return self._light.get(request) if is_light else self._carry_out(request)

    def _plan(self, key: QueueKey, offset: int, count: int) -> ReadPlan:
        level = self.topic_filter.find_read_level(key.topic)
        return plan_read(level, self.next_store, self.flat_files.get(*key), key, offset, count)

    def _carry_out(self, request: GetRequest) -> Steps[GetMessageResult]:
        """Plan a get, then query the sources in order until one has the answer."""
        key, offset = request.key, request.offset
        plan = yield self._look(lambda: self._plan(key, offset, request.max_count))
        damage: Corrupt | None = None
        for place, source in enumerate(plan):
            is_last = place + 1 == len(plan)
            if source is ReadSource.TIER:
                result = yield from self.fetcher.get_in_steps(request)
                if result.next_begin_offset - offset > len(result.messages):
                    first = offset if place == 0 else offset + 1
                    yield from self._end_at_passed(request, result, first)
                if damage is not None and result.status not in LOOKED_AT:
                    raise damage
                if is_last or _is_answer(result, offset):
                    break
                if not (yield self._look(lambda: self._source.is_in_store(key, offset))):
                    break
                topic, group = request.topic, request.group
                self.metrics.count(FALLBACKS, operation="get_message", topic=topic, group=group)
                continue
            try:
                result = yield Wait(
                    lambda: self.next_store.get(request), lambda: self.next_store.get_async(request)
                )
            except Corrupt as error:
                file = self.flat_files.get(*key)
                if is_last or file is None or offset >= file.consume_queue_commit_offset:
                    raise
                damage = error
            else:
                # Messages that left the next store during its read are missing at the start of its
                # result.
                is_whole = result.messages and result.messages[0].queue_offset == offset
                if (
                    is_last
                    or is_whole
                    or not (yield self._look(lambda: self._is_cold(key, offset)))
                ):
                    break
        from_tier = source is ReadSource.TIER
        if damage is not None:
            _log.warning("the tier answers in place of the local store: %s", damage)
        if from_tier:
            yield from self._merge(request, result)
        if self._recorder.is_on:
            self._recorder.get(request, result, from_tier=from_tier)
        return result

    def _end_at_passed(
        self, request: GetRequest, result: GetMessageResult, begin: int
    ) -> Steps[None]:
        """Shorten the tier's result if the next store has messages in a hole of the tier. The
        result then ends before the first of them at or after `begin`."""
        end = result.next_begin_offset
        first = yield self._look(lambda: self._find_passed(request.key, begin, end))
        if first < end:
            result.messages = [m for m in result.messages if m.queue_offset < first]
            result.next_begin_offset = first
            if not result.messages:
                result.status = GetMessageStatus.NO_MATCHED_MESSAGE

    def _find_passed(self, key: QueueKey, begin: int, end: int) -> int:
        file = self.flat_files.get(*key)
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
        """Return the first of these queue offsets whose message is in the log of the next store, or
        None. The min offset of the next store is not enough, because it is updated later than the
        log."""
        first = bisect.bisect_left(offsets, True, key=lambda n: self._source.is_in_store(key, n))
        return offsets[first] if first < len(offsets) else None

    def _look(self, question: Callable[[], T]) -> Wait[T]:
        """Return a step that queries the files of the next store."""
        return Wait(question, lambda: read_at_hand(question, self._executor))

    def _is_tiered(self, topic: str) -> bool:
        return self.topic_filter.find_read_level(topic) is not StorageLevel.DISABLE

    def _is_cold(self, key: QueueKey, offset: int) -> bool:
        """Return whether the message at `offset` is in the tier but not in the next store."""
        file = self.flat_files.get(*key)
        return reads_tier(StorageLevel.NOT_IN_DISK, self._source, file, key, offset)

    def _merge(self, request: GetRequest, result: GetMessageResult) -> Steps[None]:
        """Set the min offset of the tier's result to that of both stores. The max offset stays that
        of the tier, because the messages were read from there."""
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
        """Return the offset of the first message in either store. If neither has messages, return
        the next store's offset, or the end of a queue that only the tier has."""
        if self._is_light(topic):
            return self._light.find_min_offset(topic)
        low, high = self._tier_range(topic, queue_id)
        local_low, local_high = self._local_range(topic, queue_id)
        if low == high and (local_high > 0 or not high):
            return local_low
        return low if local_low >= local_high else routing.find_earliest(low, local_low)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the max offset of the next store, because it assigns offsets. For a queue that
        only the tier has, return the max offset of the tier."""
        if self._is_light(topic):
            return self._light.find_max_offset(topic)
        local = self.next_store.get_max_offset_in_queue(topic, queue_id)
        return local if local > 0 else self._tier_range(topic, queue_id)[1] or local

    def _tier_range(self, topic: str, queue_id: int) -> tuple[int, int]:
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
        """Return the queue offset for a time. LOWER: the first message of either store at or after
        the time, otherwise the end. UPPER: the last message at or before the time, otherwise the
        first message. Raises Unavailable if the tier is needed but cannot be read."""
        if self._is_light(topic):
            return self._light.find_offset(topic, timestamp_ms, boundary)
        if self._is_tiered(topic):
            tier = self.fetcher.time_side(topic, queue_id)
            if tier is not None:
                sides = [tier, self._local_side(topic, queue_id)]
                found = routing.offset_by_time(sides, timestamp_ms, boundary)
                if found >= 0:
                    return found
        return self.next_store.get_offset_in_queue_by_time(topic, queue_id, timestamp_ms, boundary)

    def _local_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the range [first, end) of offsets in the next store, empty without messages. Reads
        no file."""
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
        if topic is not None and self._is_light(topic):
            return self._light.find_earliest_time(topic)
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
        if self._is_light(topic):
            return self._light.find_time(topic, offset)
        found = -1
        for source in self._plan(QueueKey(topic, queue_id), offset, 1):
            if source is ReadSource.TIER:
                found = self.fetcher.store_timestamp(topic, queue_id, offset)
            else:
                found = self.next_store.get_message_store_timestamp(topic, queue_id, offset)
            if found >= 0:
                break
        return found

    # Keys

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Return messages of both stores without duplicates, ordered by queue and offset, at most
        `max_count`. With FORCE, the next store is queried for messages that the tier did not find.
        If the tier cannot be read, the messages of the next store are returned. Raises Unavailable
        if it has none."""
        level = self.topic_filter.find_read_level(topic)
        if level is StorageLevel.DISABLE:
            return self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)
        found: list[StoredMessage] = []
        tier_end_ms = end_ms
        local_earliest_ms = self.next_store.get_earliest_message_time()
        is_force = level is StorageLevel.FORCE
        is_local_asked = 0 <= local_earliest_ms <= end_ms
        if is_local_asked and not is_force:
            found = self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)
            # Messages that left the store in the meantime may not have been found.
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


def _is_answer(result: GetMessageResult, offset: int) -> bool:
    """Return whether the tier answered the read. If it begins later, has a hole there, lacks the
    queue or cannot be read, the next store may have the answer."""
    if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
        return result.next_begin_offset != offset  # a hole of the tier
    return result.status not in _UNANSWERED
