"""The queues as the put path knows them: numbers, next offsets, and which of them take messages by
the short way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tieredstore.clock import Clock
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer
from tieredstore.local.topics import illegal_topic
from tieredstore.message.encoding import DIRECT_COPY_BYTES, RecordEncoder
from tieredstore.message.names import SCHEDULE_TOPIC


class QueueState:
    """One queue. number: its place in `PutQueues.queues`."""

    __slots__ = ("next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = 0


Plain: TypeAlias = tuple[QueueState, Callable[..., bytes], int, int, bytes, bytes]
"""A queue, and the `PlainTemplate` of its records."""


class PutQueues(RowBuffer):
    """Queues are learned as messages are put in them. Takes messages between `open` and `close`.

    refused_topics: topics of which nothing is taken; enable_light_queues: whether a message may
    name light queues that it belongs to as well; find_next_offset: the next offset of a queue that
    is not known yet.
    """

    def __init__(
        self,
        log: CommitLog,
        encoder: RecordEncoder,
        clock: Clock,
        *,
        enable_light_queues: bool = False,
        holds_rows: bool = False,
    ) -> None:
        super().__init__(log, holds_rows=holds_rows)
        self.queues: list[QueueState] = []
        self.refused_topics: frozenset[str] = frozenset()
        self.find_next_offset: Callable[[str, int], int] = lambda _topic, _queue_id: 0
        self._by_key: dict[tuple[str, int], QueueState] = {}
        # Queues whose messages may take the short way; none while nothing may be put.
        self._plain: dict[tuple[str, int], Plain] = {}
        self._encoder = encoder
        self._now_ms = clock.now_ms
        self._max_plain_body_bytes = min(encoder.max_body_bytes, DIRECT_COPY_BYTES)
        self._enable_light_queues = enable_light_queues
        self._log.closed_reason = "the store is not started"

    def open(self) -> None:
        """Begin to take messages."""
        with self._lock:
            self._begin_offset = self._log.max_offset
            self._log.closed_reason = None
            for state in self.queues:
                self._learn(state)

    def close(self, reason: str) -> None:
        """Take no more messages; the results of those that come say why."""
        with self._lock:
            self._plain = {}
            # The log too, for those who wait for the lock and have passed the first checks already.
            self._log.closed_reason = reason
            self._log.limit = 0

    def _learn(self, state: QueueState) -> None:
        """Let plain messages of a queue take the short way."""
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

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        key = (topic, queue_id)
        state = self._by_key.get(key)
        if state is None:
            next_offset = self.find_next_offset(topic, queue_id)
            state = QueueState(topic, queue_id, len(self.queues))
            state.next_offset = next_offset
            self.queues.append(state)
            self._by_key[key] = state
            if self._log.closed_reason is None:
                self._learn(state)
        return state

    def register(self, topic: str, queue_id: int) -> QueueState:
        """Return the state of a queue, made when it is new."""
        state = self._by_key.get((topic, queue_id))
        if state is None:
            with self._lock:
                state = self._queue(topic, queue_id)
        return state

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue will get."""
        state = self._by_key.get((topic, queue_id))
        return self.find_next_offset(topic, queue_id) if state is None else state.next_offset

    def restart_queues(self, topic: str) -> None:
        """Let the next messages of a topic's queues get offset 0."""
        with self._lock:
            for state in self.queues:
                if state.topic == topic:
                    state.next_offset = 0
