"""In-memory store in place of the local store below a tiered store. Tests control its retention."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import (
    DURABLE,
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageReader,
    PutMessageResult,
)
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hashes import tags_code
from tieredstore.message.record import StoredMessage, decode_record


class InMemoryStore(MessageReader):
    """A MessageStore that is also its DispatchSource. `low[key]` is a queue's first offset."""

    def __init__(self) -> None:
        self.queues_: dict[QueueKey, list[tuple[int, StoredMessage]]] = defaultdict(list)
        self.low: dict[QueueKey, int] = defaultdict(int)
        self.in_memory_from: dict[QueueKey, int] = defaultdict(int)
        self.records: list[StoredMessage] = []
        self.now_ms = 1_700_000_000_000
        self.reserve_hours: dict[str, int] = {}
        self.levels: dict[str, StorageLevel] = {}
        self.left_out: dict[str, str] = {}
        self.guard: Callable[[QueueKey], int | None] | None = None
        self.calls: list[str] = []
        self.before_read: Callable[[], None] = lambda: None
        """Hook that is called after the tiered store has decided to read from this store, and
        before the read."""

    # MessageStore

    def load(self) -> None:
        self.calls.append("load")

    def start(self) -> None:
        self.calls.append("start")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def put_message(self, message: Message) -> PutMessageResult:
        key = QueueKey(message.topic, message.queue_id)
        offset = len(self.queues_[key])
        position = len(self.records)
        record = encode_record(message, offset, position, self.now_ms)
        stored = decode_record(record, tags_code=tags_code(message.tags))
        self.queues_[key].append((position, stored))
        self.records.append(stored)
        return PutMessageResult(
            PutMessageStatus.PUT_OK, position, offset, len(record), 1, self.now_ms, DURABLE, ok=True
        )

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        results = [self.put_message(message) for message in messages]
        return results[0]

    async def put_message_async(self, message: Message) -> PutMessageResult:
        return self.put_message(message)

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        return self.put_messages(messages)

    def wait_until_visible(self, result: PutMessageResult) -> None:
        assert result.ok

    def get(self, request: GetRequest) -> GetMessageResult:
        self.calls.append("get")
        self.before_read()
        key, offset = request.key, request.offset
        rows = self.queues_.get(key, [])
        low, high = self.low[key], len(rows)
        if not rows:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        if offset < low:
            return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, high, low, high)
        found = [stored for _, stored in rows[offset : offset + request.max_count]]
        return GetMessageResult(GetMessageStatus.FOUND, offset + len(found), low, high, found)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        return self.get(request)

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        return self.records[physical_offset]

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        return self.look_message_by_offset(physical_offset)

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        key = QueueKey(topic, queue_id)
        return self.low[key] if key in self.queues_ else -1

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        key = QueueKey(topic, queue_id)
        return len(self.queues_[key]) if key in self.queues_ else -1

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        key = QueueKey(topic, queue_id)
        low = self.low[key]
        times = [stored.store_timestamp_ms for _, stored in self.queues_[key]]
        if boundary is BoundaryType.LOWER:
            return bisect.bisect_left(times, timestamp_ms, low)
        return max(bisect.bisect_right(times, timestamp_ms, low) - 1, low)

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        keys = list(self.queues_)
        if topic is not None:
            assert queue_id is not None
            keys = [QueueKey(topic, queue_id)]
        times = [
            stored.store_timestamp_ms
            for key in keys
            for _, stored in self.queues_.get(key, [])[self.low[key] :]
        ]
        return min(times, default=-1)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        self.before_read()
        key = QueueKey(topic, queue_id)
        rows = self.queues_.get(key, [])
        return rows[offset][1].store_timestamp_ms if self.low[key] <= offset < len(rows) else -1

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        self.calls.append("query")
        self.before_read()
        found = [
            stored
            for queue, rows in sorted(self.queues_.items())
            if queue.topic == topic
            for _, stored in rows[self.low[queue] :]
            if key in (*stored.keys, stored.uniq_key)
            and begin_ms <= stored.store_timestamp_ms <= end_ms
        ]
        return found[:max_count]

    def delete_topics(self, topics: set[str]) -> int:
        gone = [key for key in self.queues_ if key.topic in topics]
        for key in gone:
            del self.queues_[key]
            self.low.pop(key, None)
        return len({key.topic for key in gone})

    @property
    def dispatch_source(self) -> DispatchSource:
        return self

    # DispatchSource

    def queues(self) -> Iterable[QueueKey]:
        return list(self.queues_)

    def flush(self) -> None:
        pass

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        if key not in self.queues_:
            return None
        return QueueRange(self.low[key], len(self.queues_[key]))

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        if offset < self.low[key]:
            return np.zeros(0, UNIT_DTYPE)
        rows = self.queues_.get(key, [])[offset : offset + count]
        units = np.zeros(len(rows), UNIT_DTYPE)
        for row, (position, stored) in enumerate(rows):
            units[row] = (position, stored.size, stored.tags_code)
        return units

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        return [self.records[position].raw for position in units["physical_offset"].tolist()]

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        return self.low[key] <= offset < len(self.queues_.get(key, []))

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        return offset >= self.in_memory_from[key]

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        return self.get_offset_in_queue_by_time(*key, timestamp_ms)

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        return self.get_earliest_message_time(*(key or ()))

    def topic_reserve_hours(self) -> dict[str, int]:
        return self.reserve_hours

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        return self.levels

    def find_excluded_topics(self) -> dict[str, str]:
        return self.left_out

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        self.guard = guard
