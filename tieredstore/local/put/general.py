"""The general put: messages of any kind (transactions, light queues, delays, large properties).

It takes what the short way (`MessageAppender`, which repeats it in line) leaves to it. Rows about
what was appended are handed to the dispatch (`reput`) in memory, so that it parses nothing that
this process wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from time import perf_counter_ns
from typing import Final

import msgspec

from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Exhausted, Invalid, TieredStoreError, Unavailable
from tieredstore.local.put.queues import PutQueues, QueueState
from tieredstore.local.put.refusals import (
    find_fault,
    find_fault_of_batch,
    refuse,
    refuse_by_error,
)
from tieredstore.local.put.rows import (
    MAX_ROW_PROPERTIES_BYTES,
    SPECIAL,
    Rows,
    make_head,
)
from tieredstore.local.queues.light_queues import (
    LIGHT_QUEUE_ID,
    add_light_offsets,
    drop_light_offsets,
    light_queue_names,
)
from tieredstore.message.buffers import Buffer
from tieredstore.message.encoding import Message, copy_parts
from tieredstore.message.names import SCHEDULE_TOPIC
from tieredstore.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from tieredstore.message.topic_deletion import TopicDeletion

_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_BUSY: Final = PutMessageStatus.OS_PAGE_CACHE_BUSY
_CLOSED: Final = PutMessageStatus.SERVICE_NOT_AVAILABLE
_NO_ROOM: Final = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
_RECORD_BYTES: Final = 512
"""About what a record takes beside its body."""
_WITH_QUEUE_OFFSET: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT)


class GeneralPut(PutQueues):
    """The long way of a message into the log, open to all. Thread-safe."""

    def _put_general(self, message: Message) -> PutMessageResult:
        """Everything but the plain message of a known queue."""
        begun_ns = perf_counter_ns()
        return self.statistics.observe_put(self._put_one(message), begun_ns)

    def _put_general_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        begun_ns = perf_counter_ns()
        return self.statistics.observe_put(self._put_many(messages), begun_ns)

    def _refuse_now(self) -> PutMessageResult | None:
        """What every put is answered now; None when puts may go on."""
        reason = self._why_refused()
        if reason is not None:
            return refuse(_CLOSED, reason)
        reason = self._busy_reason
        return None if reason is None else refuse(_BUSY, reason)

    def _put_one(self, message: Message) -> PutMessageResult:
        refused = self._refuse_now()
        if refused is not None:
            return refused
        fault = find_fault(message)
        if fault is not None:
            return refuse(_ILLEGAL, fault)
        names: list[str] = []
        if self._enable_light_queues:
            try:
                names = light_queue_names(message.topic, message.properties)
            except Invalid as error:
                return refuse(_ILLEGAL, str(error))
            if names and not self._fills_light_queues():
                names, message = [], _copy_without_offsets(message)
        is_special = (
            message.topic == SCHEDULE_TOPIC
            or bool(message.sys_flag & TRANSACTION_MASK)
            or bool(names)
            or len(message.properties) > MAX_ROW_PROPERTIES_BYTES
        )
        return self._append([message], names, is_special=is_special)

    def _put_many(self, messages: Sequence[Message]) -> PutMessageResult:
        refused = self._refuse_now()
        if refused is not None:
            return refused
        fault = find_fault_of_batch(messages, light_queues=self._enable_light_queues)
        if fault is not None:
            return refuse(_ILLEGAL, fault)
        is_special = messages[0].topic == SCHEDULE_TOPIC or any(
            len(message.properties) > MAX_ROW_PROPERTIES_BYTES for message in messages
        )
        return self._append(messages, is_special=is_special)

    def _append(
        self, messages: Sequence[Message], names: Sequence[str] = (), *, is_special: bool
    ) -> PutMessageResult:
        """The long way, for any message. names: light queues that the (single) message is put in;
        is_special: the dispatch has to look at the records."""
        topic, queue_id = messages[0].topic, messages[0].queue_id
        if topic in self.refused_topics:
            return refuse(
                _ILLEGAL,
                f"topic {topic} has a batch consume queue (queue.type=BatchCQ), which is not "
                "supported yet",
            )
        counts = messages[0].sys_flag & TRANSACTION_MASK in _WITH_QUEUE_OFFSET
        with self._lock, self.statistics.time_lock():
            if self._log.closed_reason is not None:
                return refuse(_CLOSED, self._log.closed_reason)
            try:
                state = self._queue(topic, queue_id)
                light = [self._queue(name, LIGHT_QUEUE_ID) for name in names]
                if light:
                    messages = [_copy_with_offsets(messages[0], light)]
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset if counts else 0
                start = self._log.max_offset
                parts, sizes = self._encode(messages, queue_offset, start, timestamp)
                total = sum(sizes)
                if light and total > self._encoder.max_body_bytes:
                    return refuse(
                        _ILLEGAL,
                        "message with light queues: expected a record of at most "
                        f"{self._encoder.max_body_bytes} bytes, found {total}",
                    )
                if start + total > self._log.limit:
                    here = start
                    start = self._make_room(total)
                    if start != here:
                        parts, _ = self._encode(messages, queue_offset, start, timestamp)
                copy_parts(parts, self._log.view, start - self._log.view_from)
                self._log.refuse_written(start + total)
                rows: Rows = []
                position = start
                for number, (message, size) in enumerate(
                    zip(messages, sizes, strict=True), queue_offset
                ):
                    queue = SPECIAL if is_special else state.number
                    properties = b"" if is_special else message.properties
                    rows += (queue, make_head(size, number, position, timestamp), properties)
                    position += size
            except (TieredStoreError, MemoryError) as error:
                return refuse_by_error(error)
            next_offsets = {state: queue_offset + len(messages)} if counts else {}
            for other in light:
                next_offsets[other] = next_offsets.get(other, other.next_offset) + 1
            moves = map(setattr, next_offsets, repeat("next_offset"), next_offsets.values())
            durable = self._durability_of(messages)
            waiting = self._publish(rows, position, timestamp, moves)
        if waiting > self._help_values:
            self._help()
        return PutMessageResult(
            _OK, start, queue_offset, total, len(messages), timestamp, durable, "", True
        )

    def _make_room(self, size: int) -> int:
        """`CommitLog.make_room`, whose time counts as the lock's: there a put waits for the disk,
        also one that goes the short way."""
        begun_ns = perf_counter_ns()
        try:
            return self._log.make_room(size)
        finally:
            elapsed_ms = self.statistics.report_if_slow("the room for a put", begun_ns, size)
            self.statistics.observe_lock(elapsed_ms)

    def put_deletions(
        self, topics: AbstractSet[str], find_queue_ids: Callable[[str], Iterable[int]]
    ) -> tuple[int, int]:
        """Append the messages which say that topics are deleted, as far as there are such topics;
        returns how many there are, and where the log ends behind them (bytes).

        find_queue_ids: the queues of a topic with messages that were dispatched. Raises Exhausted
        or Unavailable for what cannot be appended now: that topic is not deleted, nor are those
        that come after it (many topics take several batches).
        """
        with self._lock:
            ends: dict[str, dict[int, int]] = {
                topic: dict.fromkeys(find_queue_ids(topic), 0) for topic in topics
            }
            for topic, queue_id in self._by_key:
                if topic in ends:
                    ends[topic][queue_id] = 0
            messages: list[Message] = []
            count = 0
            for topic, queues in sorted(ends.items()):
                for queue_id in queues:
                    queues[queue_id] = self.next_offset(topic, queue_id)
                if any(queues.values()):
                    messages += TopicDeletion(topic, queues).make_messages()
                    count += 1
            for batch in _split(messages, self._log.file_size // 2):
                result = self._append(batch, is_special=True)
                if not result.ok:
                    kind = Exhausted if result.status is _NO_ROOM else Unavailable
                    raise kind(f"the topics are not deleted: {result.reason}")
            return count, self._log.max_offset

    def _encode(
        self, messages: Sequence[Message], queue_offset: int, position: int, timestamp: int
    ) -> tuple[list[Buffer], list[int]]:
        parts: list[Buffer] = []
        sizes: list[int] = []
        for number, message in enumerate(messages, queue_offset):
            sizes.append(self._encoder.append(parts, message, number, position, timestamp))
            position += sizes[-1]
        return parts, sizes


def _copy_with_offsets(message: Message, light: Sequence[QueueState]) -> Message:
    properties = add_light_offsets(message.properties, [queue.next_offset for queue in light])
    return msgspec.structs.replace(message, properties=properties)


def _copy_without_offsets(message: Message) -> Message:
    """Offsets that a producer has made up would lead a later dispatch to places in light queues
    that are others'."""
    properties = drop_light_offsets(message.properties)
    return msgspec.structs.replace(message, properties=properties)


def _split(messages: Sequence[Message], most_bytes: int) -> Iterator[list[Message]]:
    """Batches of about that many bytes of bodies, one message each at least."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        size += len(message.body) + _RECORD_BYTES
        if batch and size > most_bytes:
            yield batch
            batch, size = [], len(message.body) + _RECORD_BYTES
        batch.append(message)
    if batch:
        yield batch
