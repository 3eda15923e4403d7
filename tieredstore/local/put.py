"""Putting messages: checks, offsets, encoding and the append, in one short critical section.

Everything runs in the caller's thread. Rows about what was appended are handed to the dispatch
(`reput`) in memory, so that it parses nothing that this process wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Self

import msgspec

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import PutMessageResult, PutMessageStatus
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.light_queues import (
    LIGHT_QUEUE_ID,
    light_queue_names,
    names_light_queues,
    with_light_offsets,
)
from tieredstore.local.topics import SCHEDULE_TOPIC, illegal_topic
from tieredstore.message.buffers import Buffer
from tieredstore.message.encoding import (
    DIRECT_COPY_BYTES,
    Message,
    PropertiesTooLarge,
    RecordEncoder,
    copy_parts,
)
from tieredstore.message.layout import BLANK_SIZE
from tieredstore.message.properties import find_text
from tieredstore.message.record import blank_record
from tieredstore.message.sysflag import (
    INNER_BATCH,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)

ROW_FIELDS: Final = 6
"""A row: queue number, physical offset, size, store time, queue offset, properties. The queue
number is SPECIAL for records that the dispatch has to look at themselves."""
SPECIAL: Final = -1
MAX_ROWS: Final = 65_536
"""Rows kept for the dispatch; past it they are dropped and it reads the log instead."""
HELP_ROWS: Final = 8_192
"""Rows from which on a producer runs a pass of the dispatch itself."""
MAX_ROW_PROPERTIES_BYTES: Final = 4_096
"""Larger properties are not kept in a row: they would make MAX_ROWS no bound."""

_DURABLE: Final[Future[None]] = Future()
_DURABLE.set_result(None)
_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_WITH_QUEUE_OFFSET: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT)

Rows = list[int | bytes]


class QueueState:
    """One queue as the put path knows it. number: its place in `MessageAppender.queues`."""

    __slots__ = ("is_special", "next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = 0
        # Units of delayed messages carry a time in place of a tags code.
        self.is_special = topic == SCHEDULE_TOPIC


class Handover(NamedTuple):
    """What was appended since the last one: rows (ROW_FIELDS values each) and where the log ends.
    is_cut: rows were dropped, so the log has to be read."""

    rows: Rows
    end_offset: int
    is_cut: bool


class _NoRows(list[int | bytes]):
    """Takes rows and keeps none, while the dispatch reads the log."""

    def __iadd__(self, rows: object) -> Self:  # type: ignore[override,misc]
        return self


def refused(status: PutMessageStatus) -> PutMessageResult:
    """The result of a put that stored nothing."""
    return PutMessageResult(status, -1, -1, 0, 0, 0, _DURABLE)


class MessageAppender:
    """The only writer of a commit log; thread-safe.

    `last_timestamp_ms` is the store time of the last message. Store times never go back, whatever
    the clock does, so that searches by time stay right. `help_dispatch` is called by a producer
    that finds HELP_ROWS rows waiting.
    """

    def __init__(
        self,
        log: CommitLog,
        encoder: RecordEncoder,
        clock: Clock,
        *,
        max_record_bytes: int,
        enable_light_queues: bool = False,
    ) -> None:
        self.queues: list[QueueState] = []
        self.last_timestamp_ms = 0
        self.wake = threading.Event()
        self.help_dispatch: Callable[[], object] = lambda: None
        self._is_idle = False
        self._log = log
        self._encoder = encoder
        self._now_ms = clock.now_ms
        self._max_record_bytes = max_record_bytes
        self._enable_light_queues = enable_light_queues
        self._lock = threading.Lock()
        self._by_key: dict[tuple[str, int], QueueState] = {}
        self._rows: Rows = []
        self._file_from = 0
        self._limit = 0  # a record may end here without further preparation
        self._view = memoryview(bytearray())

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        key = (topic, queue_id)
        state = self._by_key.get(key)
        if state is None:
            state = QueueState(topic, queue_id, len(self.queues))
            self.queues.append(state)
            self._by_key[key] = state
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

    def put(self, message: Message) -> PutMessageResult:
        """Append one message. Nothing is stored unless the status says so."""
        state = self._by_key.get((message.topic, message.queue_id))
        sys_flag = message.sys_flag
        properties = message.properties
        if (
            state is None
            or state.is_special
            or message.body is None
            or sys_flag & (TRANSACTION_MASK | INNER_BATCH)
            or b"INNER_" in properties
            or len(properties) > MAX_ROW_PROPERTIES_BYTES
        ):
            return self._put_special(message)
        lock = self._lock
        lock.acquire()
        try:
            timestamp = self._now_ms()
            if timestamp > self.last_timestamp_ms:
                self.last_timestamp_ms = timestamp
            else:
                timestamp = self.last_timestamp_ms
            log = self._log
            queue_offset = state.next_offset
            position = log.max_offset
            parts: list[Buffer] = []
            size = self._encoder.append(parts, message, queue_offset, position, timestamp)
            end = position + size
            if end > self._limit:
                position = self._make_room(size)
                if position + size != end:
                    end = position + size
                    parts.clear()
                    self._encoder.append(parts, message, queue_offset, position, timestamp)
            inside = position - self._file_from
            if size < DIRECT_COPY_BYTES:
                self._view[inside : inside + size] = b"".join(parts)
            else:
                copy_parts(parts, self._view, inside)
            rows = self._rows
            rows += (state.number, position, size, timestamp, queue_offset, properties)
            log.max_offset = end
            state.next_offset = queue_offset + 1
            if self._is_idle:
                self._is_idle = False
                self.wake.set()
        except TieredStoreError as error:
            return refused(_status_of(error))
        finally:
            lock.release()
        if len(rows) > HELP_ROWS * ROW_FIELDS:
            self._backlog()
        return PutMessageResult(_OK, position, queue_offset, size, 1, timestamp, _DURABLE)

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append messages of one queue with consecutive offsets in one file, all or none."""
        if not messages:
            return refused(_ILLEGAL)
        first = messages[0]
        for message in messages:
            if (
                message.queue_id != first.queue_id
                or message.topic != first.topic
                or message.body is None
                or message.sys_flag & (TRANSACTION_MASK | INNER_BATCH)
                or len(message.properties) > MAX_ROW_PROPERTIES_BYTES
                or b"INNER_" in message.properties
                or b"DELAY\x01" in message.properties
            ):
                return self._put_special_batch(messages)
        if illegal_topic(first.topic, first.queue_id):
            return refused(_ILLEGAL)
        return self._append(messages)

    def _put_special_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        first = messages[0]
        for message in messages:
            if (
                message.queue_id != first.queue_id
                or message.topic != first.topic
                or message.body is None
            ):
                return refused(_ILLEGAL)
            if message.sys_flag & (TRANSACTION_MASK | INNER_BATCH) or find_text(
                message.properties, b"INNER_NUM"
            ):
                return refused(_ILLEGAL)
            delay = find_text(message.properties, b"DELAY")
            if delay is not None and delay != "0":
                return refused(_ILLEGAL)
            if self._enable_light_queues and names_light_queues(message.properties):
                return refused(_ILLEGAL)
        if illegal_topic(first.topic, first.queue_id):
            return refused(_ILLEGAL)
        return self._append(messages, is_special=True)

    def _put_special(self, message: Message) -> PutMessageResult:
        """Everything but the plain message of a known queue."""
        if (
            message.body is None
            or message.sys_flag & INNER_BATCH
            or find_text(message.properties, b"INNER_NUM")
            or illegal_topic(message.topic, message.queue_id)
        ):
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

    def _append(
        self, messages: Sequence[Message], names: Sequence[str] = (), *, is_special: bool = False
    ) -> PutMessageResult:
        counts = messages[0].sys_flag & TRANSACTION_MASK in _WITH_QUEUE_OFFSET
        with self._lock:
            try:
                state = self._queue(messages[0].topic, messages[0].queue_id)
                light = [self._queue(name, LIGHT_QUEUE_ID) for name in names]
                if light:
                    messages = [_with_offsets(messages[0], light)]
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset if counts else 0
                position = self._log.max_offset
                while True:
                    parts: list[Buffer] = []
                    sizes: list[int] = []
                    start = position
                    for number, message in enumerate(messages, queue_offset):
                        size = self._encoder.append(parts, message, number, position, timestamp)
                        sizes.append(size)
                        position += size
                    if light and position - start > self._max_record_bytes:
                        return refused(_ILLEGAL)
                    if position <= self._limit:
                        break
                    position = self._make_room(position - start)
                    if position == start:
                        position += sum(sizes)
                        break
                copy_parts(parts, self._view, start - self._file_from)
                offset = start
                new_rows: Rows = []
                for number, (message, size) in enumerate(
                    zip(messages, sizes, strict=True), queue_offset
                ):
                    if is_special:
                        new_rows += (SPECIAL, offset, size, timestamp, number, b"")
                    else:
                        new_rows += (
                            state.number, offset, size, timestamp, number, message.properties
                        )  # fmt: skip
                    offset += size
                self._rows += new_rows
                self._log.max_offset = position
                self.last_timestamp_ms = timestamp
                if counts:
                    state.next_offset = queue_offset + len(messages)
                for queue in light:
                    queue.next_offset += 1
                if self._is_idle:
                    self._is_idle = False
                    self.wake.set()
                waiting = len(self._rows)
            except TieredStoreError as error:
                return refused(_status_of(error))
        if waiting > HELP_ROWS * ROW_FIELDS:
            self._backlog()
        return PutMessageResult(
            _OK, start, queue_offset, position - start, len(messages), timestamp, _DURABLE
        )

    def _make_room(self, size: int) -> int:
        """Where the next `size` bytes go: here, or in the next file. Raises Unavailable, Invalid
        when no file is large enough."""
        log = self._log
        if size + BLANK_SIZE > log.file_size:
            raise Invalid(
                f"message of {size} bytes: expected at most {log.file_size - BLANK_SIZE}, which is "
                "what a commit log file takes"
            )
        position = log.max_offset
        file = log.next_file()
        room = file.from_offset + file.size - position
        if size + BLANK_SIZE > room:
            if file.from_offset + file.size > position > file.from_offset:
                file.reserve(position - file.from_offset + BLANK_SIZE)
                inside = position - file.from_offset
                file.view[inside : inside + BLANK_SIZE] = blank_record(room)
            log.max_offset = position = position + room
            file = log.next_file()
        reserved = file.reserve(position + size - file.from_offset)
        self._file_from = file.from_offset
        self._limit = file.from_offset + min(reserved, file.size - BLANK_SIZE)
        self._view = file.view
        return position

    def _backlog(self) -> None:
        self.help_dispatch()
        with self._lock:
            if len(self._rows) > MAX_ROWS * ROW_FIELDS:
                self._rows = _NoRows()

    def take_rows(self) -> Handover:
        """What the dispatch has not seen yet; an empty answer makes the next put set `wake`."""
        with self._lock:
            rows = self._rows
            if isinstance(rows, _NoRows):
                return Handover([], self._log.max_offset, True)
            self._rows = []
            self._is_idle = not rows
            return Handover(rows, self._log.max_offset, False)

    def resume_rows(self, offset: int) -> bool:
        """Hand rows over again if the log ends at an offset, up to which the dispatch has read."""
        with self._lock:
            if self._log.max_offset != offset:
                return False
            self._rows = []
            return True

    def drop_rows(self) -> None:
        """Hand over nothing until `resume_rows`: the dispatch has to read the log."""
        with self._lock:
            self._rows = _NoRows()


def _with_offsets(message: Message, light: Sequence[QueueState]) -> Message:
    properties = with_light_offsets(message.properties, [queue.next_offset for queue in light])
    return msgspec.structs.replace(message, properties=properties)


def _status_of(error: TieredStoreError) -> PutMessageStatus:
    if isinstance(error, PropertiesTooLarge):
        return PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    if isinstance(error, Invalid):
        return _ILLEGAL
    return PutMessageStatus.CREATE_MAPPED_FILE_FAILED
