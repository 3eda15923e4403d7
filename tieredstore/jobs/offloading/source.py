"""The store as an offload sees it: chosen topics only, and every read counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.jobs.run import JobProgress, ProgressCallback
from tieredstore.tier.policy.topic_filter import TopicFilter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.tier.flat.file_store import FlatFileStore


class OffloadSource:
    """A DispatchSource over another one. `topics`: shell patterns, empty for all."""

    def __init__(
        self, source: DispatchSource, topics: Sequence[str], topic_filter: TopicFilter
    ) -> None:
        self._source = source
        self._topics = tuple(topics)
        self._filter = topic_filter
        self._lock = threading.Lock()
        self._callback: ProgressCallback | None = None
        self._messages = 0
        self._message_bytes = 0
        self._total = 0
        self._start = 0.0
        self._queues: list[QueueKey] | None = None
        self._excluded: dict[str, str] | None = None

    def look_again(self) -> None:
        """Forget which queues and topics there are: they are listed once, and then when somebody
        asks after this."""
        self._queues = self._excluded = None

    def check_topics(self) -> None:
        """Raise Invalid for a pattern that no topic of the store matches."""
        if not self._topics:
            return
        names = sorted(
            {key.topic for key in self._source.queues()} | {*self._source.find_excluded_topics()}
        )
        for pattern in self._topics:
            if not any(fnmatchcase(name, pattern) for name in names):
                import difflib

                close = difflib.get_close_matches(pattern, names, n=3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise Invalid(f"--topics: the store has no topic {pattern!r}{hint}")

    def begin(
        self,
        flat_files: FlatFileStore,
        callback: ProgressCallback | None,
        start: float,
    ) -> None:
        """Count what there is to do, and report from now on."""
        self._callback = callback
        self._start = start
        for key in self.queues():
            try:
                available = self._source.queue_range(key)
            except TieredStoreError:
                continue  # the pass says what is wrong with it
            if available is None:
                continue
            file = flat_files.get(key.topic, key.queue_id)
            done = 0 if file is None or not file.is_initialised else file.consume_queue_max_offset
            self._total += max(available.max_offset - max(available.min_offset, done), 0)
        if callback is not None:
            self._report()

    def all_queues(self) -> Iterator[QueueKey]:
        """Yield the queues of the chosen topics, those that never go to a tier included."""
        if self._queues is None:
            self._queues = [key for key in self._source.queues() if self._is_chosen(key.topic)]
        yield from self._queues

    def make_topic_choice(self) -> Callable[[str], bool]:
        """Make what tells whether a topic is chosen and its queues may go to a tier."""
        excluded = self.find_excluded_topics()
        return lambda topic: (
            self._is_chosen(topic) and self._filter.is_uploaded(topic) and topic not in excluded
        )

    def _is_chosen(self, topic: str) -> bool:
        return not self._topics or any(fnmatchcase(topic, name) for name in self._topics)

    # DispatchSource

    def queues(self) -> Iterator[QueueKey]:
        return (key for key in self.all_queues() if self._filter.is_uploaded(key.topic))

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        return self._source.queue_range(key)

    def flush(self) -> None:
        self._source.flush()

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        return self._source.read_units(key, offset, count)

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        records = self._source.read_records(units)
        with self._lock:
            # Single messages that are read to be compared may be counted twice.
            self._messages = min(self._messages + len(units), self._total)
            self._message_bytes += int(units["size"].sum())
            if self._callback is not None:
                self._report()
        return records

    def _report(self) -> None:
        assert self._callback is not None
        self._callback(
            JobProgress(
                "offload",
                "messages",
                self._messages,
                self._total,
                self._message_bytes,
                None,
                time.monotonic() - self._start,
            )
        )

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        return self._source.is_in_store(key, offset)

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        return self._source.is_in_memory(key, offset, count)

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        return self._source.offset_by_time(key, timestamp_ms)

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        return self._source.earliest_message_time(key)

    def topic_reserve_hours(self) -> dict[str, int]:
        return self._source.topic_reserve_hours()

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        return self._source.topic_storage_levels()

    def find_excluded_topics(self) -> dict[str, str]:
        """Return the chosen topics that are left out, and why."""
        if self._excluded is None:
            self._excluded = {
                topic: reason
                for topic, reason in self._source.find_excluded_topics().items()
                if self._is_chosen(topic)
            }
        return self._excluded

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        """Ignore the guard: the store is not ours, and its owner cleans as it likes."""
        del guard


def list_skipped_topics(source: OffloadSource, topic_filter: TopicFilter) -> dict[str, str]:
    """List the topics of the store that do not go to the tier, and why."""
    topics = {key.topic for key in source.all_queues()}
    reasons = {
        topic: topic_filter.reason(topic) or topic_filter.find_policy(topic) for topic in topics
    }
    reasons.update(source.find_excluded_topics())
    return {topic: reason for topic, reason in sorted(reasons.items()) if reason is not None}
