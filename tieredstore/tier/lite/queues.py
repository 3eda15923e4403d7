"""Light queues of lite topics, over the local store and the tier."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import numpy as np

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageStore,
)
from tieredstore.disk.at_hand import read_at_hand
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message.lite import parse_lite_topic
from tieredstore.metrics import Metrics
from tieredstore.tier.fetch.block_fetcher import report_failure
from tieredstore.tier.fetch.read_ahead import Taken
from tieredstore.tier.fetch.unreadable import UnreadablePlaces
from tieredstore.tier.lite.reading import LiteReader
from tieredstore.tier.lite.service import LiteService, is_light
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.reading import Steps, Wait, run

_NEVER = 2**63 - 1
T = TypeVar("T")


class LightQueues:
    """Reads of light queues. Messages come from the local store if it has them, otherwise from the
    tier. Thread-safe. `executor`: runs the blocking parts of coroutines. `unreadable`: damaged
    messages at which consumers wait."""

    def __init__(
        self,
        next_store: MessageStore,
        service: LiteService,
        reader: LiteReader,
        topic_filter: TopicFilter,
        metrics: Metrics,
        executor: Executor | None,
        unreadable: UnreadablePlaces,
    ) -> None:
        self._unreadable = unreadable
        self._next_store = next_store
        self._service = service
        self._reader = reader
        self._topic_filter = topic_filter
        self._metrics = metrics
        self._executor = executor

    @property
    def _source(self) -> DispatchSource:
        return self._next_store.dispatch_source

    def is_tiered(self, topic: str) -> bool:
        """Return whether a topic is a light queue whose history may be in the tier."""
        if not self._service.is_enabled or not is_light(topic):
            return False
        lite = parse_lite_topic(topic)
        if lite is None:
            return False
        return self._topic_filter.find_read_level(lite.parent) is not StorageLevel.DISABLE

    def get(self, request: GetRequest) -> Steps[GetMessageResult]:
        """Get messages of a light queue, as a generator of steps. OFFSET_FOUND_NULL means that the
        tier could not be read and the caller should retry."""
        offset = request.offset
        low, high = yield self._look(lambda: self._find_range(request.topic))
        local = self._next_store.get_max_offset_in_queue(*request.key)
        is_cold = low <= offset < high and not (
            offset < local
            and (yield self._look(lambda: self._source.is_in_store(request.key, offset)))
        )
        if is_cold:
            try:
                taken = yield from self._take(request)
            except Corrupt as error:
                fault = self._unreadable.note(request.key, offset, error)
                return GetMessageResult(
                    GetMessageStatus.OFFSET_FOUND_NULL, offset, low, high, fault=fault
                )
            except TieredStoreError as error:
                report_failure(self._metrics, request.key, offset, error)
                return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, offset, low, high)
            self._unreadable.note_read(request.key, offset)
            if taken is not None:
                status = (
                    GetMessageStatus.FOUND
                    if taken.messages
                    else GetMessageStatus.NO_MATCHED_MESSAGE
                )
                return GetMessageResult(status, taken.next_offset, low, high, [*taken.messages])
        if not local and high:
            return _refuse(offset, low, high)
        result: GetMessageResult = yield Wait(
            lambda: self._next_store.get(request), lambda: self._next_store.get_async(request)
        )
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
            has_left = low <= offset < high and not is_cold  # during the read of the local store
            if has_left or not (yield self._look(lambda: self._is_complete(request.topic))):
                return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, offset, low, high)
            if offset < low:
                result.next_begin_offset = low
        result.min_offset = min(result.min_offset, low)
        return result

    def _take(self, request: GetRequest) -> Steps[Taken | None]:
        """Take messages from the tier. If the tier lacks the requested message, the result has no
        message, and its next offset is the first one in the local store or the tier. Raises
        Unavailable, Corrupt."""
        offset = request.offset
        taken = yield from self._reader.take(request)
        if taken is not None and (taken.messages or taken.next_offset <= offset):
            return taken
        end = self._next_store.get_max_offset_in_queue(*request.key) if taken is None else 0
        end = max(end, 0 if taken is None else taken.next_offset)
        if not (yield self._look(lambda: self._is_complete(request.topic))):
            raise Unavailable(
                f"{request.topic}: its messages in the tier are not in a run yet", offset=offset
            )
        held = yield self._look(lambda: self._find_held(request.key, offset, end))
        if held is not None and held > offset:
            return Taken((), held, 0)
        return taken

    def _is_complete(self, queue: str) -> bool:
        """Return whether the runs have all messages of a light queue's parent topic that are no
        longer in the local store."""
        lite = parse_lite_topic(queue)

        def find_kept(queue_id: int) -> int:
            found = self._source.queue_range(QueueKey(lite.parent if lite else "", queue_id))
            return _NEVER if found is None else found.min_offset

        return lite is None or not self._service.is_behind(lite.parent, find_kept)

    def _find_held(self, key: QueueKey, begin: int, end: int) -> int | None:
        """Return the first offset in [begin, end) that the local store has a message for, or
        None."""
        low = max(self._next_store.get_min_offset_in_queue(*key), begin)
        offsets = range(low, min(self._next_store.get_max_offset_in_queue(*key), end))
        first = bisect.bisect_left(offsets, True, key=lambda n: self._source.is_in_store(key, n))
        return offsets[first] if first < len(offsets) else None

    def _look(self, question: Callable[[], T]) -> Wait[T]:
        return Wait(question, lambda: read_at_hand(question, self._executor))

    # Offsets and times

    def _find_range(self, queue: str) -> tuple[int, int]:
        low, high = self._service.find_range(queue)
        local_low = self._next_store.get_min_offset_in_queue(queue, 0)
        local_high = self._next_store.get_max_offset_in_queue(queue, 0)
        if low < high:
            return min(low, local_low) if local_low < local_high else low, max(high, local_high)
        if not local_high and (end := self._service.find_end(queue)):
            return end, end
        return local_low, local_high

    def find_min_offset(self, queue: str) -> int:
        """Return the offset of the first message, which may have expired since the last merge of
        runs. The tier is not read."""
        return self._find_range(queue)[0]

    def find_max_offset(self, queue: str) -> int:
        """Return the offset after the last message. The tier is not read."""
        local = self._next_store.get_max_offset_in_queue(queue, 0)
        return local if local > 0 else self._service.find_end(queue)

    def find_time(self, queue: str, offset: int) -> int:
        """Return the store time of a message (epoch ms), or -1. The time of the last message needs
        no request. Raises Unavailable, Corrupt."""
        found = self._next_store.get_message_store_timestamp(queue, 0, offset)
        if found >= 0:
            return found
        runs = self._service.find(queue)
        last = next((one for one in runs if one.end == offset + 1), None)
        if last is not None:
            return last.time_ms
        if not any(one.first <= offset < one.end for one in runs):
            return -1
        units = run(self._reader.find_units(queue, offset, 1))
        is_it = len(units) and int(units["offset"][0]) == offset
        return int(units["time_ms"][0]) if is_it else -1

    def find_earliest_time(self, queue: str) -> int:
        """Return the store time of the first message (epoch ms), or -1. Raises Unavailable,
        Corrupt."""
        if self._service.find(queue):
            units = run(self._reader.find_units(queue, 0, 1))
            if len(units):
                return int(units["time_ms"][0])
        return self._next_store.get_earliest_message_time(queue, 0)

    def find_offset(self, queue: str, timestamp_ms: int, boundary: BoundaryType) -> int:
        """Return the offset for a time, like `MessageStore.get_offset_in_queue_by_time`. Raises
        Unavailable, Corrupt."""
        is_lower = boundary is BoundaryType.LOWER
        local = self._next_store.get_offset_in_queue_by_time(queue, 0, timestamp_ms, boundary)
        found = self._service.find(queue)
        if not found:
            return local
        units = run(self._reader.find_units(queue, 0, sum(one.size for one in found)))
        if not len(units):
            return local
        times = np.maximum.accumulate(units["time_ms"].astype(np.int64))
        at = int(np.searchsorted(times, timestamp_ms, side="left" if is_lower else "right"))
        last = int(units["offset"][-1])
        local_low = self._next_store.get_min_offset_in_queue(queue, 0)
        if at < len(units):
            return int(units["offset"][at if is_lower else max(at - 1, 0)])
        local_high = self._next_store.get_max_offset_in_queue(queue, 0)
        if local_low >= local_high or local_high <= last + 1:
            return last + 1 if is_lower else last
        first_ms = self._next_store.get_message_store_timestamp(queue, 0, last + 1)
        if not is_lower and first_ms > timestamp_ms:
            return last
        return max(local, last + 1) if is_lower else local


def _refuse(offset: int, low: int, high: int) -> GetMessageResult:
    """Return the result of a get at an offset without a message, for a light queue that is not in
    the local store."""
    if offset < low < high:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset > high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, high, low, high)
