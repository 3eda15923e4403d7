"""View of the store for an offload. It shows only the chosen topics and counts reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.message.columns.records import check_bodies, record_columns
from tieredstore.message.record import decode_record
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter


@dataclass(slots=True)
class WrongBodies:
    """Messages of a queue that are copied although their bodies do not match their CRCs.
    `first_offset`: queue offset of the first of them. `next_offset`: queue offset after the
    last."""

    first_offset: int
    messages: int = 0
    next_offset: int = 0


@dataclass
class OffloadSource:
    """DispatchSource that shows only the chosen topics of another one. `topics`: shell patterns,
    empty for all. `wrong_bodies`: newly copied messages whose body does not match its CRC, by
    queue."""

    source: DispatchSource
    topics: Sequence[str]
    topic_filter: TopicFilter
    wrong_bodies: dict[QueueKey, WrongBodies] = field(default_factory=dict)
    _done: dict[QueueKey, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _callback: ProgressCallback | None = None
    _messages: int = 0
    _message_bytes: int = 0
    _total: int = 0
    _start: float = 0.0
    _queues: list[QueueKey] | None = None
    _excluded: dict[str, str] | None = None

    def look_again(self) -> None:
        """Discard the cached list of queues and topics."""
        self._queues = self._excluded = None

    def check_topics(self) -> None:
        """Raise Invalid for a pattern that no topic of the store matches."""
        if not self.topics:
            return
        names = sorted(
            {key.topic for key in self.source.queues()} | {*self.source.find_excluded_topics()}
        )
        for pattern in self.topics:
            if not any(fnmatchcase(name, pattern) for name in names):
                import difflib

                close = difflib.get_close_matches(pattern, names, n=3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise Invalid(f"--topics: the store has no topic {pattern!r}{hint}")

    def begin(
        self, flat_files: FlatFileStore, callback: ProgressCallback | None, start: float
    ) -> None:
        """Count the messages to copy, and begin to report progress."""
        self._callback = callback
        self._start = start
        for key in self.queues():
            try:
                available = self.source.queue_range(key)
            except TieredStoreError:
                continue  # The pass reports the queue's problem.
            if available is None:
                continue
            file = flat_files.get(key.topic, key.queue_id)
            done = 0 if file is None or not file.is_initialised else file.consume_queue_max_offset
            self._done[key] = done
            self._total += max(available.max_offset - max(available.min_offset, done), 0)
        if callback is not None:
            self._report()

    def all_queues(self) -> Iterator[QueueKey]:
        """Yield the queues of the chosen topics, including queues that never go to a tier."""
        if self._queues is None:
            self._queues = [key for key in self.source.queues() if self._is_chosen(key.topic)]
        yield from self._queues

    def make_topic_choice(self) -> Callable[[str], bool]:
        """Return a function that decides whether a topic was chosen and may go to a tier."""
        excluded = self.find_excluded_topics()
        return lambda topic: (
            self._is_chosen(topic)
            and self.topic_filter.is_uploaded(topic)
            and topic not in excluded
        )

    def _is_chosen(self, topic: str) -> bool:
        return not self.topics or any(fnmatchcase(topic, name) for name in self.topics)

    # DispatchSource

    def queues(self) -> Iterator[QueueKey]:
        return (key for key in self.all_queues() if self.topic_filter.is_uploaded(key.topic))

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        return self.source.queue_range(key)

    def flush(self) -> None:
        self.source.flush()

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        return self.source.read_units(key, offset, count)

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        records = self.source.read_records(units)
        wrong = list(_find_wrong_bodies(units, records))
        with self._lock:
            for key, offset in wrong:
                self._count_wrong(key, offset)
            # Single messages that are read to be compared may be counted twice.
            self._messages = min(self._messages + len(units), self._total)
            self._message_bytes += int(units["size"].sum())
            if self._callback is not None:
                self._report()
        return records

    def _count_wrong(self, key: QueueKey, offset: int) -> None:
        """Count a message whose body has a wrong CRC. A message at a lower offset was already
        counted, because uploads read a queue in order."""
        if offset < self._done.get(key, 0):
            return  # only compared
        found = self.wrong_bodies.setdefault(key, WrongBodies(offset))
        if offset >= found.next_offset:
            found.messages += 1
            found.next_offset = offset + 1

    def _report(self) -> None:
        assert self._callback is not None
        done = (self._messages, self._total, self._message_bytes)
        seconds = time.monotonic() - self._start
        self._callback(JobProgress("offload", "messages", *done, None, seconds))

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        return self.source.is_in_store(key, offset)

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        return self.source.is_in_memory(key, offset, count)

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        return self.source.offset_by_time(key, timestamp_ms)

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        return self.source.earliest_message_time(key)

    def topic_reserve_hours(self) -> dict[str, int]:
        return self.source.topic_reserve_hours()

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        return self.source.topic_storage_levels()

    def find_excluded_topics(self) -> dict[str, str]:
        """Return the chosen topics that are not copied, with reasons."""
        if self._excluded is None:
            self._excluded = {
                topic: reason
                for topic, reason in self.source.find_excluded_topics().items()
                if self._is_chosen(topic)
            }
        return self._excluded

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        """No-op: the owner of the store deletes its old files."""
        del guard


def _find_wrong_bodies(
    units: npt.NDArray[np.void], records: Sequence[memoryview]
) -> Iterator[tuple[QueueKey, int]]:
    """Yield queue and offset of the messages whose bodies do not match their CRCs."""
    data = records[0] if len(records) == 1 else memoryview(b"".join(records))
    sizes = units["size"].astype(np.int64)
    starts = sizes.cumsum() - sizes
    try:
        good = check_bodies(data, record_columns(data, starts))
    except Corrupt:
        return  # The upload reports it.
    for start in starts[~good].tolist():
        message = decode_record(data, start)
        yield QueueKey(message.topic, message.queue_id), message.queue_offset


def list_skipped_topics(source: OffloadSource, topic_filter: TopicFilter) -> dict[str, str]:
    """Return the topics of the store that do not go to the tier, with reasons."""
    topics = {key.topic for key in source.all_queues()}
    reasons = {
        topic: topic_filter.reason(topic) or topic_filter.find_policy(topic) for topic in topics
    }
    reasons.update(source.find_excluded_topics())
    return {topic: reason for topic, reason in sorted(reasons.items()) if reason is not None}
