"""Putting messages: checks, offsets, encoding and the append, in one short critical section.

Everything runs in the caller's thread. Plain messages of known queues, nearly all there are, take
`put` and `put_batch`, which encode in line: there each call and each attribute counts. Anything
else takes `_append`. Rows about what was appended are handed to the dispatch (`reput`) in memory,
so that it parses nothing that this process wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.handover import (
    MAX_ROW_PROPERTIES_BYTES,
    SPECIAL,
    Rows,
    RowSource,
)
from tieredstore.local.light_queues import (
    LIGHT_QUEUE_ID,
    light_queue_names,
    with_light_offsets,
)
from tieredstore.local.put_verdicts import (
    DURABLE,
    is_illegal,
    is_illegal_batch,
    refused,
    status_of,
)
from tieredstore.local.topics import SCHEDULE_TOPIC, illegal_topic
from tieredstore.message.buffers import Buffer
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.message.encoding import (
    DIRECT_COPY_BYTES,
    Message,
    RecordEncoder,
    copy_parts,
)
from tieredstore.message.sysflag import (
    BORN_HOST_V6,
    INNER_BATCH,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)

_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_CLOSED: Final = PutMessageStatus.SERVICE_NOT_AVAILABLE
_WITH_QUEUE_OFFSET: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT)
_NOT_PLAIN: Final = TRANSACTION_MASK | INNER_BATCH | BORN_HOST_V6 | STORE_HOST_V6
_V4_SIZE: Final = 8
_LENGTHS: Final = tuple(length.to_bytes(2, "big") for length in range(MAX_ROW_PROPERTIES_BYTES + 1))


class QueueState:
    """One queue as the put path knows it. number: its place in `MessageAppender.queues`."""

    __slots__ = ("next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = 0


_Plain: TypeAlias = tuple[QueueState, Callable[..., bytes], int, int, bytes, bytes]


class MessageAppender(RowSource):
    """The only writer of a commit log; thread-safe. Takes messages between `open` and `close`.

    Store times never go back, whatever the clock does, so that searches by time stay right.
    max_body_bytes: largest body; refused_topics: topics of which nothing is taken.
    """

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
        self._max_plain_body_bytes = min(max_body_bytes, DIRECT_COPY_BYTES)
        self._enable_light_queues = enable_light_queues
        self._by_key: dict[tuple[str, int], QueueState] = {}
        # Queues whose messages may take the short way; none while nothing may be put.
        self._plain: dict[tuple[str, int], _Plain] = {}

    def open(self) -> None:
        """Begin to take messages."""
        with self._lock:
            self._is_open = True
            self._log.is_writable = True
            for state in self.queues:
                self._add_plain(state)

    def close(self) -> None:
        """Take no more messages."""
        with self._lock:
            self._is_open = False
            self._plain = {}
            # Also for those who wait for the lock and have looked `_plain` up already.
            self._log.is_writable = False
            self._log.limit = 0

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        key = (topic, queue_id)
        state = self._by_key.get(key)
        if state is None:
            state = QueueState(topic, queue_id, len(self.queues))
            self.queues.append(state)
            self._by_key[key] = state
            if self._is_open:
                self._add_plain(state)
        return state

    def _add_plain(self, state: QueueState) -> None:
        # Units of delayed messages carry a time in place of a tags code.
        if (
            state.topic == SCHEDULE_TOPIC
            or state.topic in self.refused_topics
            or illegal_topic(state.topic, state.queue_id)
        ):
            return
        template = self._encoder.plain_template(state.topic)
        if template is not None:
            self._plain[state.topic, state.queue_id] = (state, *template)

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

    def put(self, message: Message) -> PutMessageResult:
        """Append one message. The statuses are RocketMQ's: nothing is raised for a bad message, and
        nothing is stored of it."""
        try:
            state, pack, magic, fixed_bytes, topic_field, store_host = self._plain[
                message.topic, message.queue_id
            ]
        except KeyError:
            return self._put_other(message)
        body = message.body
        properties = message.properties
        born_host = message.born_host
        sys_flag = message.sys_flag
        properties_length = len(properties)
        if (
            sys_flag & _NOT_PLAIN
            or properties_length > MAX_ROW_PROPERTIES_BYTES
            or body is None
            or len(body) > self._max_plain_body_bytes
            or len(born_host) != _V4_SIZE
            or b"INNER_" in properties
        ):
            return self._put_other(message)
        body_length = len(body)
        size = fixed_bytes + body_length + properties_length
        crc = raw_crc32(body) & CRC_MASK
        lock = self._lock
        lock.acquire()  # `with` would take twice as long
        try:
            timestamp = self._now_ms()
            if timestamp > self.last_timestamp_ms:
                self.last_timestamp_ms = timestamp
            else:
                timestamp = self.last_timestamp_ms
            log = self._log
            position = log.max_offset
            if position + size > log.limit:
                position = log.make_room(size)
            end = position + size
            queue_offset = state.next_offset
            head = pack(
                size,
                magic,
                crc,
                message.queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_timestamp_ms,
                born_host,
                timestamp,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            )
            inside = position - log.view_from
            log.view[inside : inside + size] = b"".join(
                (head, body, topic_field, _LENGTHS[properties_length], properties)
            )
            rows = self._rows
            rows += (state.number, position, size, timestamp, queue_offset, properties)
            log.max_offset = end
            state.next_offset = queue_offset + 1
            if self._is_idle:
                self._is_idle = False
                self.wake.set()
        except TieredStoreError as error:
            return refused(status_of(error))
        except struct.error:  # a number that its field cannot hold
            return refused(_ILLEGAL)
        finally:
            lock.release()
        if len(rows) > self._help_values:
            self._backlog()
        return PutMessageResult(_OK, position, queue_offset, size, 1, timestamp, DURABLE)

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append messages of one queue with consecutive offsets in one file, all or none."""
        if not messages:
            return refused(_ILLEGAL)
        plain = self._plain.get((messages[0].topic, messages[0].queue_id))
        if plain is None:
            return self._put_other_batch(messages)
        state = plain[0]
        with self._lock:
            try:
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset
                start = self._log.max_offset
                encoded = self._encode_plain(plain, messages, queue_offset, start, timestamp)
                if encoded is not None:
                    data, rows = encoded
                    if start + len(data) > self._log.limit:
                        here, start = start, self._log.make_room(len(data))
                        if start != here:
                            encoded = self._encode_plain(
                                plain, messages, queue_offset, start, timestamp
                            )
                            assert encoded is not None
                            data, rows = encoded
                    inside = start - self._log.view_from
                    self._log.view[inside : inside + len(data)] = data
                    waiting = self._publish(rows, start + len(data), timestamp)
                    state.next_offset = queue_offset + len(messages)
            except TieredStoreError as error:
                return refused(status_of(error))
            except struct.error:  # a number that its field cannot hold
                return refused(_ILLEGAL)
        if encoded is None:
            return self._put_other_batch(messages)
        if waiting > self._help_values:
            self._backlog()
        return PutMessageResult(
            _OK, start, queue_offset, len(data), len(messages), timestamp, DURABLE
        )

    def _encode_plain(
        self,
        plain: _Plain,
        messages: Sequence[Message],
        queue_offset: int,
        position: int,
        timestamp: int,
    ) -> tuple[bytes, Rows] | None:
        """Records and rows of a batch of one queue; None when it has to take the long way."""
        state, pack, magic, fixed_bytes, topic_field, store_host = plain
        topic, queue_id, number = state.topic, state.queue_id, state.number
        max_body_bytes = self._max_plain_body_bytes
        parts: list[Buffer] = []
        rows: Rows = []
        for message in messages:
            body = message.body
            properties = message.properties
            born_host = message.born_host
            sys_flag = message.sys_flag
            properties_length = len(properties)
            if (
                message.queue_id != queue_id
                or message.topic != topic
                or sys_flag & _NOT_PLAIN
                or properties_length > MAX_ROW_PROPERTIES_BYTES
                or body is None
                or len(body) > max_body_bytes
                or len(born_host) != _V4_SIZE
                or b"INNER_" in properties
                or b"DELAY\x01" in properties
            ):
                return None
            body_length = len(body)
            size = fixed_bytes + body_length + properties_length
            head = pack(
                size,
                magic,
                raw_crc32(body) & CRC_MASK,
                queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_timestamp_ms,
                born_host,
                timestamp,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            )
            parts += (head, body, topic_field, _LENGTHS[properties_length], properties)
            rows += (number, position, size, timestamp, queue_offset, properties)
            position += size
            queue_offset += 1
        return b"".join(parts), rows

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
