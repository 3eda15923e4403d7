"""Queues of the put path, with their numbers and next offsets. Also holds the cached values of the
plain path (the fast path of ordinary messages) for each queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Final, TypeAlias

from tieredstore.clock import Clock
from tieredstore.errors import TieredStoreError
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer
from tieredstore.local.running_flags import RunningFlags
from tieredstore.local.statistics import PutStatistics
from tieredstore.message.encoding import DIRECT_COPY_BYTES, RecordEncoder
from tieredstore.message.layout import check_size, is_blank_record
from tieredstore.message.names import (
    DELETION_TOPIC,
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    illegal_topic,
)
from tieredstore.message.record import StoredMessage

MAX_SAMPLED_QUEUES: Final = 1_024
"""Maximum number of queues in a list of samples. A new list is made when it is used up."""


class QueueState:
    """State of one queue. `number`: index of the queue in `PutQueues.queues`."""

    __slots__ = ("next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = next_offset


FORGOTTEN: Final = 1 << 63
"""Value of `next_offset` for a forgotten queue. A put that still uses this state fails to create a
record, and then looks the queue up again."""
_NO_QUEUE: Final = QueueState("", -1, -1, FORGOTTEN)
"""Placeholder in `PutQueues.queues` for a number whose queue was removed."""


Plain: TypeAlias = tuple[QueueState, Callable[..., bytes], int, int, bytes, bytes, bytes]
"""Cached values of the plain path (the fast path of ordinary messages) for each queue: its state,
and the parts of `PlainTemplate` that encode its records."""


class PutQueues(RowBuffer):
    """Queues of the put path, added as messages are put. Messages are accepted between `open` and
    `close`, unless a flag forbids puts. The plain path does not check flags. Instead, each change
    of a flag empties its table of queues, and the general path, which checks the flags, fills the
    table again.

    `refused_topics`: topics whose messages are rejected.
    `enable_light_queues`: whether a message may also name light queues.
    `fills_light_queues`: whether messages are currently put in light queues.
    `find_next_offset`: returns the next offset of an unknown queue.
    """

    __slots__ = ("_max_plain_body_bytes", "_now_ms", "_plain")  # as those of a RowBuffer

    def __init__(
        self,
        log: CommitLog,
        encoder: RecordEncoder,
        clock: Clock,
        flags: RunningFlags,
        *,
        enable_light_queues: bool = False,
        fills_light_queues: Callable[[], bool] = lambda: True,
        holds_rows: bool = False,
    ) -> None:
        super().__init__(log, holds_rows=holds_rows)
        self.queues: list[QueueState] = []
        self.refused_topics: frozenset[str] = frozenset()
        self.find_next_offset: Callable[[str, int], int] = lambda _topic, _queue_id: 0
        self._by_key: dict[tuple[str, int], QueueState] = {}
        self._free_numbers: list[int] = []
        # Queues whose messages may take the plain path. Empty while puts are rejected.
        self._plain: dict[tuple[str, int], Plain] = {}
        self._encoder = encoder
        self._now_ms = clock.now_ms
        self._max_plain_body_bytes = min(encoder.max_body_bytes, DIRECT_COPY_BYTES)
        self._enable_light_queues = enable_light_queues
        self._fills_light_queues = fills_light_queues
        self._flags = flags
        self.statistics = PutStatistics()
        self._busy_reason: str | None = None
        self._samples: Iterator[tuple[str, int]] = iter(())
        self._log.closed_reason = "the store is not started"
        flags.on_change = self._leave_short_way

    def limit_bodies(self, max_body_bytes: int) -> None:
        """Set the maximum size of a body."""
        encoder = self._encoder
        if max_body_bytes != encoder.max_body_bytes:
            with self._lock:
                encoder.limit_bodies(max_body_bytes)
                self._max_plain_body_bytes = min(max_body_bytes, DIRECT_COPY_BYTES)

    def open(self) -> None:
        """Start accepting messages."""
        with self._lock:
            self._begin_offset = self._log.max_offset
            self._log.closed_reason = None
            for state in self._by_key.values():
                self._learn(state)

    def close(self, reason: str) -> None:
        """Stop accepting messages. Results of later puts contain the reason."""
        with self._lock:
            self._plain = {}
            # The log too, for puts that wait for the lock after the first checks.
            self._log.closed_reason = reason
            self._log.limit = 0

    def leave_to_parent(self) -> None:
        """Reject messages in a forked child, where another thread may hold the lock forever."""
        self._plain = {}
        self._log.closed_reason = "this process was forked from the store's owner"

    def _leave_short_way(self) -> None:
        self._plain = {}
        self.statistics.forget_reasons()

    def refuse_busy(self, reason: str | None) -> None:
        """Reject later puts with OS_PAGE_CACHE_BUSY and a reason. None accepts puts again."""
        if (reason is None) != (self._busy_reason is None):
            self._busy_reason = reason
            if reason is not None:
                self._leave_short_way()

    def find_held_lock(self) -> int | None:
        """Return the end of the log if the put lock is held now, otherwise None. If several calls
        in a row return the same end, one put has held the lock all that time. The dispatch holds it
        only briefly."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return None
        return self._log.max_offset

    def find_end(self) -> int:
        """Return the current end of the log (bytes)."""
        return self._log.max_offset

    def find_time(self) -> int:
        """Return the current time of puts (epoch ms)."""
        return self._now_ms()

    def measure_put(self, offset: int, until_ms: int) -> int | None:
        """Return the number of bytes that one put has appended at `offset`. All records of a put
        have the same store time, so this is the total size of the first records with the same time.
        Returns 0 if that time is after `until_ms`, and None if nothing can be read at `offset`."""
        try:
            data = self._log.rest_of_file(offset)
            if data and is_blank_record(data, 0):
                data = self._log.rest_of_file(offset + len(data))
            return _measure_first_time(data, until_ms) if data else None
        except TieredStoreError:
            return 0

    def _help_after(self, size: int) -> None:
        """Run a dispatch pass in the thread of a put, and report it if it was slow. `size`: bytes
        of the put."""
        begun_ns = perf_counter_ns()
        self._help()
        self.statistics.report_if_slow("the dispatch behind a put", begun_ns, size)

    def sample_next_put(self) -> None:
        """Select the next queue for a sample. Its next put takes the general path, where puts are
        timed."""
        key = next(self._samples, None)
        if key is None:
            self._samples = iter(list(islice(self._plain, MAX_SAMPLED_QUEUES)))
            key = next(self._samples, None)
        if key is not None:
            self._plain.pop(key, None)

    def _why_refused(self) -> str | None:
        """Return why puts are currently rejected: the store is not running, or a flag is raised."""
        reason = self._log.closed_reason
        return reason if reason is not None else self._flags.why_not_writeable()

    def _learn(self, state: QueueState) -> None:
        # Units of delayed messages have a time instead of a tags code. Deletions are not put.
        # Messages enter light queues through other topics, and there may be a million of them.
        if (
            state.topic in (SCHEDULE_TOPIC, DELETION_TOPIC)
            or state.topic.startswith(LMQ_PREFIX)
            or state.topic in self.refused_topics
            or illegal_topic(state.topic, state.queue_id)
        ):
            return
        template = self._encoder.plain_template(state.topic)
        if template is not None:
            record = template.make_record(state.queue_id)
            self._plain[state.topic, state.queue_id] = (state, *template, record)
        if self._why_refused() is not None:  # since this put was accepted
            self._plain = {}

    def _queue(self, topic: str, queue_id: int) -> QueueState:
        key = (topic, queue_id)
        state = self._by_key.get(key)
        if state is None:
            next_offset = self.find_next_offset(topic, queue_id)
            number = self._free_numbers.pop() if self._free_numbers else len(self.queues)
            state = QueueState(topic, queue_id, number, next_offset)
            self.queues[number : number + 1] = [state]
            self._by_key[key] = state
        if key not in self._plain and self._why_refused() is None:
            self._learn(state)
        return state

    def list_queues(self) -> list[QueueState]:
        """Return the known queues."""
        return list(self._by_key.values())

    def register(self, topic: str, queue_id: int) -> QueueState:
        """Return the state of a queue, which is created for a new queue."""
        state = self._by_key.get((topic, queue_id))
        if state is None:
            with self._lock:
                state = self._queue(topic, queue_id)
        return state

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue."""
        state = self._by_key.get((topic, queue_id))
        return self.find_next_offset(topic, queue_id) if state is None else state.next_offset

    def find_number(self, topic: str, queue_id: int) -> int | None:
        """Return the index of a queue in `queues`, or None if the queue is unknown."""
        state = self._by_key.get((topic, queue_id))
        return None if state is None else state.number

    def forget_queue(self, topic: str, queue_id: int, end_offset: int) -> None:
        """Remove a deleted queue that ended at `end_offset`, unless it has received a message since
        its deletion. The queue's number is reused for another queue, so no waiting row may contain
        it."""
        with self._lock:
            state = self._by_key.get((topic, queue_id))
            if state is not None and state.next_offset <= end_offset:
                del self._by_key[topic, queue_id]
                self._plain.pop((topic, queue_id), None)
                self._free_numbers.append(state.number)
                self.queues[state.number] = _NO_QUEUE
                state.next_offset = FORGOTTEN


def _measure_first_time(data: memoryview, until_ms: int) -> int:
    """Return the total size of the first records in `data` with the same store time, or 0 if that
    time is after `until_ms`. Raises Corrupt."""
    end, time_ms = 0, -1
    while end < len(data) and not is_blank_record(data, end):
        size = check_size(data, end, len(data))
        found_ms = StoredMessage(data, end, size).store_timestamp_ms
        if found_ms > until_ms or time_ms not in (-1, found_ms):
            break
        end, time_ms = end + size, found_ms
    return end
