"""Puts of messages of any kind (transactions, light queues, delays, large properties).

`MessageAppender` handles plain messages itself and passes all others to GeneralPut. Rows of
appended messages are passed to the dispatch (`reput`) in memory, so that it need not parse records
of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from time import perf_counter_ns
from typing import Final, cast

import msgspec

from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.errors import Busy, Corrupt, Exhausted, Invalid, TieredStoreError, Unavailable
from tieredstore.local.put.queues import PutQueues, QueueState
from tieredstore.local.put.rows import MAX_ROW_PROPERTIES_BYTES, SPECIAL, Rows, make_head
from tieredstore.local.queues.light_queues import (
    add_light_offsets,
    drop_light_offsets,
    light_queue_names,
    names_light_queues,
)
from tieredstore.local.queues.topic_deletion import TopicDeletion
from tieredstore.local.running_flags import find_passing
from tieredstore.message.buffers import Buffer
from tieredstore.message.encoding import Message, OwnMessage, PropertiesTooLarge, copy_parts
from tieredstore.message.lite import LITE_QUEUE_ID
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC, illegal_topic, is_closed_topic
from tieredstore.message.properties import find_integer, find_text
from tieredstore.message.sysflag import (
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)

NO_MESSAGES: Final = "batch: expected messages, found none"


def refuse(status: PutMessageStatus, reason: str) -> PutMessageResult:
    """Return the result of a rejected put."""
    return PutMessageResult(status, -1, -1, 0, 0, 0, DURABLE, reason)


def refuse_by_error(error: TieredStoreError | MemoryError) -> PutMessageResult:
    """Return the result of a put that failed because of the encoder, the disk or memory."""
    return refuse(_status_of(error), str(find_passing(error) or error))


def find_fault(message: Message) -> str | None:
    """Return why a single message cannot be stored, or None. The encoder checks sizes later."""
    if cast("Buffer | None", message.body) is None:
        return f"message of topic {message.topic!r}: body: expected bytes, found None"
    if message.sys_flag & INNER_BATCH or find_text(message.properties, b"INNER_NUM") is not None:
        return (
            f"message of topic {message.topic!r}: several messages in one record (INNER_NUM), "
            "which is not supported yet"
        )
    if message.topic == DELETION_TOPIC:
        return f"topic {DELETION_TOPIC}: only the store itself puts messages in it"
    return illegal_topic(message.topic, message.queue_id)


def find_fault_of_batch(messages: Sequence[Message], *, light_queues: bool) -> str | None:
    """Return why these messages are not a valid batch, or None. A batch has one queue, no
    transaction, no delay and no light queues. `light_queues`: whether the store serves light
    queues."""
    if not messages:
        return NO_MESSAGES
    first = messages[0]
    for number, message in enumerate(messages):
        fault = find_fault(message)
        if message.queue_id != first.queue_id or message.topic != first.topic:
            fault = (
                f"expected a message of {first.topic}/{first.queue_id} like the first one, found "
                f"{message.topic}/{message.queue_id}"
            )
        elif message.sys_flag & TRANSACTION_MASK:
            fault = "expected no message of a transaction"
        elif (find_integer(message.properties, b"DELAY") or 0) > 0:
            fault = "expected no delayed message"
        elif light_queues and names_light_queues(message.properties):
            fault = "expected no message with light queues"
        if fault is not None:
            return f"message {number} of the batch: {fault}"
    return None


def _status_of(error: TieredStoreError | MemoryError) -> PutMessageStatus:
    if isinstance(error, PropertiesTooLarge):
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, Invalid):
        return PutMessageStatus.MESSAGE_ILLEGAL
    if isinstance(error, Busy | Corrupt):
        return PutMessageStatus.SERVICE_NOT_AVAILABLE
    return PutMessageStatus.CREATE_MAPPED_FILE_FAILED


_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_BUSY: Final = PutMessageStatus.OS_PAGE_CACHE_BUSY
_CLOSED: Final = PutMessageStatus.SERVICE_NOT_AVAILABLE
_NO_ROOM: Final = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
_RECORD_BYTES: Final = 512
"""Approximate size of a record without its body."""
_WITH_QUEUE_OFFSET: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT)


class GeneralPut(PutQueues):
    """General put path for messages of any kind. Thread-safe."""

    def _put_general(self, message: Message) -> PutMessageResult:
        begun_ns = perf_counter_ns()
        return self.statistics.observe_put(self._put_one(message), begun_ns)

    def _put_general_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        begun_ns = perf_counter_ns()
        return self.statistics.observe_put(self._put_many(messages), begun_ns)

    def _refuse_now(self) -> PutMessageResult | None:
        """Return the result that currently rejects every put, or None if puts are accepted."""
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
            is_left_out = names and not self._fills_light_queues()
            if is_left_out or (not names and is_closed_topic(message.topic)):
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
        """Append messages of any kind. `names`: light queues of the message, if there is only one
        message. `is_special`: whether the dispatch must parse the records."""
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
                light = [self._queue(name, LITE_QUEUE_ID) for name in names]
                if light:
                    messages = [_copy_with_offsets(messages[0], light)]
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset if counts else 0
                start = self._log.max_offset
                parts, sizes = self._encode(messages, queue_offset, start, timestamp)
                total = sum(sizes)
                is_own = isinstance(messages[0], OwnMessage)
                if light and total > self._encoder.max_body_bytes and not is_own:
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
            # A queue that is named twice has the message once.
            next_offsets |= {other: other.next_offset + 1 for other in light}
            moves = map(setattr, next_offsets, repeat("next_offset"), next_offsets.values())
            durable = self._durability_of(messages)
            waiting = self._publish(rows, position, timestamp, moves)
        if waiting > self._help_values:
            self._help()
        return PutMessageResult(
            _OK, start, queue_offset, total, len(messages), timestamp, durable, "", True
        )

    def _make_room(self, size: int) -> int:
        """Call `CommitLog.make_room`. Its duration counts as time in the put lock, because it may
        wait for the disk."""
        begun_ns = perf_counter_ns()
        try:
            return self._log.make_room(size)
        finally:
            elapsed_ms = self.statistics.report_if_slow("the room for a put", begun_ns, size)
            self.statistics.observe_lock(elapsed_ms)

    def put_deletions(
        self, topics: AbstractSet[str], find_queue_ids: Callable[[str], Iterable[int]]
    ) -> tuple[int, int]:
        """Append the messages that record deletions of existing topics, in several batches if there
        are many. Returns the number of topics, and the end of the log after the messages (bytes).
        `find_queue_ids`: returns the queues of a topic with dispatched messages. Raises Exhausted
        or Unavailable if a message cannot be appended now. Its topic and all later topics are then
        not deleted."""
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
    """Return a copy of a message without the light queue offsets in its properties. A producer
    could otherwise invent offsets, and make a later dispatch write units at positions of other
    messages."""
    properties = drop_light_offsets(message.properties)
    return msgspec.structs.replace(message, properties=properties)


def _split(messages: Sequence[Message], most_bytes: int) -> Iterator[list[Message]]:
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
