"""Putting messages of any kind: transactions, light queues, delays, large properties.

What `put` leaves to it. Rows about what was appended are handed to the dispatch (`reput`) in
memory, so that it parses nothing that this process wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import (
    MAX_ROW_PROPERTIES_BYTES,
    SPECIAL,
    Rows,
    RowSource,
)
from tieredstore.local.put.verdicts import (
    DURABLE,
    is_illegal,
    is_illegal_batch,
    refused,
    status_of,
)
from tieredstore.local.queues.light_queues import (
    LIGHT_QUEUE_ID,
    light_queue_names,
    with_light_offsets,
)
from tieredstore.local.topics import SCHEDULE_TOPIC
from tieredstore.message.buffers import Buffer
from tieredstore.message.encoding import (
    Message,
    RecordEncoder,
    copy_parts,
)
from tieredstore.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)

_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_CLOSED: Final = PutMessageStatus.SERVICE_NOT_AVAILABLE
_WITH_QUEUE_OFFSET: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT)


class QueueState:
    """One queue as the put path knows it. number: its place in `AnyAppender.queues`."""

    __slots__ = ("next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = 0


class AnyAppender(RowSource):
    """Queues, their next offsets, and the long way of a message into the log. Thread-safe."""

    def __init__(
        self,
        log: CommitLog,
        encoder: RecordEncoder,
        clock: Clock,
        *,
        max_body_bytes: int,
        enable_light_queues: bool = False,
    ) -> None:
        super().__init__(log)
        self.queues: list[QueueState] = []
        self.refused_topics: frozenset[str] = frozenset()
        self._is_open = False
        self._encoder = encoder
        self._now_ms = clock.now_ms
        self._max_body_bytes = max_body_bytes
        self._enable_light_queues = enable_light_queues
        self._by_key: dict[tuple[str, int], QueueState] = {}

    def open(self) -> None:
        """Begin to take messages."""
        with self._lock:
            self._is_open = True
            self._log.is_writable = True
            for state in self.queues:
                self._learn(state)

    def close(self) -> None:
        """Take no more messages."""
        with self._lock:
            self._is_open = False
            # Also for those who wait for the lock and have passed the first checks already.
            self._log.is_writable = False
            self._log.limit = 0

    def _learn(self, state: QueueState) -> None:
        """A queue of which messages may be put from now on."""

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        key = (topic, queue_id)
        state = self._by_key.get(key)
        if state is None:
            state = QueueState(topic, queue_id, len(self.queues))
            self.queues.append(state)
            self._by_key[key] = state
            if self._is_open:
                self._learn(state)
        return state

    def register(self, topic: str, queue_id: int) -> QueueState:
        """The state of a queue, made when it is new."""
        state = self._by_key.get((topic, queue_id))
        if state is None:
            with self._lock:
                state = self._queue(topic, queue_id)
        return state

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Offset that the next message of a queue will get."""
        state = self._by_key.get((topic, queue_id))
        return 0 if state is None else state.next_offset

    def restart_queues(self, topic: str) -> None:
        """The next messages of a topic's queues get offset 0."""
        with self._lock:
            for state in self.queues:
                if state.topic == topic:
                    state.next_offset = 0

    def _put_other(self, message: Message) -> PutMessageResult:
        """Everything but the plain message of a known queue."""
        if not self._is_open:
            return refused(_CLOSED)
        if is_illegal(message):
            return refused(_ILLEGAL)
        names: list[str] = []
        if self._enable_light_queues:
            try:
                names = light_queue_names(message.topic, message.properties)
            except Invalid:
                return refused(_ILLEGAL)
        is_special = (
            message.topic == SCHEDULE_TOPIC
            or bool(message.sys_flag & TRANSACTION_MASK)
            or bool(names)
            or len(message.properties) > MAX_ROW_PROPERTIES_BYTES
        )
        return self._append([message], names, is_special=is_special)

    def _put_other_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        if not self._is_open:
            return refused(_CLOSED)
        if is_illegal_batch(messages, light_queues=self._enable_light_queues):
            return refused(_ILLEGAL)
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
            return refused(_ILLEGAL)
        counts = messages[0].sys_flag & TRANSACTION_MASK in _WITH_QUEUE_OFFSET
        with self._lock:
            if not self._is_open:
                return refused(_CLOSED)
            try:
                state = self._queue(topic, queue_id)
                light = [self._queue(name, LIGHT_QUEUE_ID) for name in names]
                if light:
                    messages = [_with_offsets(messages[0], light)]
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset if counts else 0
                start = self._log.max_offset
                parts, sizes = self._encode(messages, queue_offset, start, timestamp)
                total = sum(sizes)
                if light and total > self._max_body_bytes:
                    return refused(_ILLEGAL)
                if start + total > self._log.limit:
                    here = start
                    start = self._log.make_room(total)
                    if start != here:
                        parts, _ = self._encode(messages, queue_offset, start, timestamp)
                copy_parts(parts, self._log.view, start - self._log.view_from)
            except TieredStoreError as error:
                return refused(status_of(error))
            rows: Rows = []
            position = start
            for number, (message, size) in enumerate(
                zip(messages, sizes, strict=True), queue_offset
            ):
                queue = SPECIAL if is_special else state.number
                properties = b"" if is_special else message.properties
                rows += (queue, position, size, timestamp, number, properties)
                position += size
            waiting = self._publish(rows, position, timestamp)
            if counts:
                state.next_offset = queue_offset + len(messages)
            for other in light:
                other.next_offset += 1
        if waiting > self._help_values:
            self._backlog()
        return PutMessageResult(_OK, start, queue_offset, total, len(messages), timestamp, DURABLE)

    def _encode(
        self, messages: Sequence[Message], queue_offset: int, position: int, timestamp: int
    ) -> tuple[list[Buffer], list[int]]:
        parts: list[Buffer] = []
        sizes: list[int] = []
        for number, message in enumerate(messages, queue_offset):
            sizes.append(self._encoder.append(parts, message, number, position, timestamp))
            position += sizes[-1]
        return parts, sizes


def _with_offsets(message: Message, light: Sequence[QueueState]) -> Message:
    properties = with_light_offsets(message.properties, [queue.next_offset for queue in light])
    return msgspec.structs.replace(message, properties=properties)
