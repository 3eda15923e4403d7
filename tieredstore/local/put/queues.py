"""The queues as the put path knows them: numbers, next offsets, and which of them take messages by
the short way."""

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
from tieredstore.local.statistics.put_statistics import PutStatistics
from tieredstore.local.topics import illegal_topic
from tieredstore.message.encoding import DIRECT_COPY_BYTES, RecordEncoder
from tieredstore.message.layout import check_size, is_blank_record
from tieredstore.message.names import SCHEDULE_TOPIC
from tieredstore.message.record import StoredMessage

MAX_SAMPLED_QUEUES: Final = 1_024
"""Queues that take part in a round of samples."""


class QueueState:
    """One queue. number: its place in `PutQueues.queues`."""

    __slots__ = ("next_offset", "number", "queue_id", "topic")

    def __init__(self, topic: str, queue_id: int, number: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = next_offset


FORGOTTEN: Final = 1 << 63
"""The next offset of a queue that was forgotten: a put that has it in hand can make no record of
it, and begins again."""
_NO_QUEUE: Final = QueueState("", -1, -1, FORGOTTEN)
"""In the place of a queue that was forgotten."""


Plain: TypeAlias = tuple[QueueState, Callable[..., bytes], int, int, bytes, bytes, bytes]
"""A queue, the `PlainTemplate` of its records, and what it makes of them for the queue."""


class PutQueues(RowBuffer):
    """Queues are learned as messages are put in them. Takes messages between `open` and `close`,
    while no flag says otherwise.

    Each change of a flag empties the table of queues whose messages take the short way, which has
    no checks: the general one asks the flags, and fills the table again once puts may go on.
    refused_topics: topics of which nothing is taken; enable_light_queues: whether a message may
    name light queues that it belongs to as well; fills_light_queues: whether it gets a place in
    them now; find_next_offset: the next offset of a queue that
    is not known yet.
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
        # Queues whose messages may take the short way; none while nothing may be put.
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
        """Take no larger bodies from now on."""
        encoder = self._encoder
        if max_body_bytes != encoder.max_body_bytes:
            with self._lock:
                encoder.limit_bodies(max_body_bytes)
                self._max_plain_body_bytes = min(max_body_bytes, DIRECT_COPY_BYTES)

    def open(self) -> None:
        """Begin to take messages."""
        with self._lock:
            self._begin_offset = self._log.max_offset
            self._log.closed_reason = None
            for state in self._by_key.values():
                self._learn(state)

    def close(self, reason: str) -> None:
        """Take no more messages; the results of those that come say why."""
        with self._lock:
            self._plain = {}
            # The log too, for those who wait for the lock and have passed the first checks already.
            self._log.closed_reason = reason
            self._log.limit = 0

    def leave_to_parent(self) -> None:
        """Take no more messages in a forked child, where the lock may be taken for ever."""
        self._plain = {}
        self._log.closed_reason = "this process was forked from the store's owner"

    def _leave_short_way(self) -> None:
        self._plain = {}
        self.statistics.forget_reasons()

    def refuse_busy(self, reason: str | None) -> None:
        """Refuse puts with OS_PAGE_CACHE_BUSY from now on; None: no longer."""
        if (reason is None) != (self._busy_reason is None):
            self._busy_reason = reason
            if reason is not None:
                self._leave_short_way()

    def find_held_lock(self) -> int | None:
        """Return where the log ends while somebody has the put lock, None when nobody has: if it is
        the same place in many looks, and the lock was taken in all, then by one put (the dispatch
        has it for moments)."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return None
        return self._log.max_offset

    def find_end(self) -> int:
        """Return where the log ends now, bytes."""
        return self._log.max_offset

    def find_time(self) -> int:
        """Return the time that puts have now, epoch ms."""
        return self._now_ms()

    def measure_put(self, offset: int, until_ms: int) -> int | None:
        """Measure what one put appended where the log ended at `offset`, bytes: the records there
        that have the same store time. 0 when there is nothing of `until_ms` or before, None while
        nothing can be read there."""
        try:
            data = self._log.rest_of_file(offset)
            if data and is_blank_record(data, 0):
                data = self._log.rest_of_file(offset + len(data))
            return _measure_first_time(data, until_ms) if data else None
        except TieredStoreError:
            return 0

    def _help_after(self, size: int) -> None:
        """`_help`, behind a put of so many bytes."""
        begun_ns = perf_counter_ns()
        self._help()
        self.statistics.report_if_slow("the dispatch behind a put", begun_ns, size)

    def sample_next_put(self) -> None:
        """Send the next put of one queue, another each time, the general way."""
        key = next(self._samples, None)
        if key is None:
            self._samples = iter(list(islice(self._plain, MAX_SAMPLED_QUEUES)))
            key = next(self._samples, None)
        if key is not None:
            self._plain.pop(key, None)

    def _why_refused(self) -> str | None:
        """Why nothing is put now: the store does not run, or a flag is raised."""
        reason = self._log.closed_reason
        return reason if reason is not None else self._flags.why_not_writeable()

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
            record = template.make_record(state.queue_id)
            self._plain[state.topic, state.queue_id] = (state, *template, record)
        if self._why_refused() is not None:  # since this put was let in
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
        """List the queues that are known now."""
        return list(self._by_key.values())

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

    def find_number(self, topic: str, queue_id: int) -> int | None:
        """Return the number of a queue, None for an unknown one."""
        state = self._by_key.get((topic, queue_id))
        return None if state is None else state.number

    def forget_queue(self, topic: str, queue_id: int, end_offset: int) -> None:
        """Keep nothing of a queue whose life ended at an offset, unless a message was put in it
        since. Its number is given to another queue; no row that waits may have it."""
        with self._lock:
            state = self._by_key.get((topic, queue_id))
            if state is not None and state.next_offset <= end_offset:
                del self._by_key[topic, queue_id]
                self._plain.pop((topic, queue_id), None)
                self._free_numbers.append(state.number)
                self.queues[state.number] = _NO_QUEUE
                state.next_offset = FORGOTTEN


def _measure_first_time(data: memoryview, until_ms: int) -> int:
    """How many bytes the records have that lead and have one store time, no later than that. Raises
    Corrupt."""
    end, time_ms = 0, -1
    while end < len(data) and not is_blank_record(data, end):
        size = check_size(data, end, len(data))
        found_ms = StoredMessage(data, end, size).store_timestamp_ms
        if found_ms > until_ms or time_ms not in (-1, found_ms):
            break
        end, time_ms = end + size, found_ms
    return end
