"""Source of a tier's uploads that this process owns, including the changes that the tier makes to
it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from tieredstore.clock import RetentionClock
from tieredstore.contracts.dispatch_source import ArrivedRuns, DeletedEnd, QueueKey
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.running_flags import RunningFlag
from tieredstore.local.topic_table import TopicTable

if TYPE_CHECKING:
    from tieredstore.local.message_store import DefaultMessageStore


class OwnedDispatchSource(LocalDispatchSource):
    """The store of this process as DispatchSource, HistorySource, NotedChanges and ObservedSource.
    Light queues are listed separately, because there may be a million of them. `find_end_offsets`,
    `find_deleted_ends`: see `set_history`. `observe`: sets a function that is called with arrived
    messages."""

    def __init__(
        self,
        store: DefaultMessageStore,
        queues: ConsumeQueueStoreInterface,
        topics: Callable[[], TopicTable],
        flush: Callable[[], object],
        observe: Callable[[Callable[[ArrivedRuns], object] | None], object],
    ) -> None:
        super().__init__(store, queues.list_topic_queues, topics, flush)
        self._queues = queues
        self._observe = observe
        self._owned = store
        self.find_end_offsets: Callable[[str], Mapping[int, int]] = lambda _topic: {}
        self.find_deleted_ends: Callable[[str], Mapping[int, int]] = lambda _topic: {}
        self._changed: set[QueueKey] = set()
        self._changed_lock = threading.Lock()
        # Taken queues whose messages may not be on disk yet, with the end of the log at that time.
        self._unflushed: set[QueueKey] = set()
        self._unflushed_until = 0

    @property
    def retention_clock(self) -> RetentionClock:
        return self._owned.cleaning.retention_clock

    def list_light_queues(self, prefix: str, after: str = "") -> Iterable[tuple[str, int]]:
        return self._queues.list_light_queues(prefix, after)

    def count_light_queues(self, prefix: str) -> int:
        return self._queues.count_light_queues(prefix)

    def note_units(self, keys: Iterable[QueueKey]) -> None:
        """Record that queues have new units. Call this once readers see the units."""
        with self._changed_lock:
            self._changed.update(keys)

    def take_changed(self) -> AbstractSet[QueueKey]:
        """Return the queues whose `queue_range` may have grown since the last call. A queue with
        messages that are not yet on disk is returned again later."""
        with self._changed_lock:
            taken, self._changed = self._changed, set()
        log = self._owned.commit_log
        # In this order: later messages are put after the queues were taken.
        until, flushed = log.readable_offset, log.flushed_offset
        found = taken | self._unflushed
        self._unflushed = set() if flushed >= self._unflushed_until else self._unflushed
        if flushed < until:
            self._unflushed, self._unflushed_until = self._unflushed | taken, until
        return found

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        self._observe(observer)

    @property
    def is_empty(self) -> bool:
        return self._owned.commit_log.is_empty

    @property
    def log_end(self) -> int:
        return self._owned.commit_log.max_offset

    @property
    def is_dispatched(self) -> bool:
        return self._owned.is_dispatched

    def find_next_offset(self, key: QueueKey) -> int:
        return self._owned.find_next_offset(key.topic, key.queue_id)

    def refuse_puts(self, reason: str) -> None:
        self._owned.running_flags.set(RunningFlag.FENCED, reason, lasting=True)

    def set_history(
        self,
        find_end_offsets: Callable[[str], Mapping[int, int]],
        find_deleted_ends: Callable[[str], Mapping[int, int]] | None = None,
    ) -> None:
        self.find_end_offsets = find_end_offsets
        if find_deleted_ends is not None:
            self.find_deleted_ends = find_deleted_ends

    def begin_log_at(self, physical_offset: int) -> None:
        self._owned.begin_log_at(physical_offset)

    def find_deleted_queues(self) -> dict[QueueKey, DeletedEnd]:
        """Return the queues of deleted topics, each with its end at the last deletion. Deletions
        are read from the log and from the file of deletions that a tier has not recorded yet."""
        found = self._owned.kept_deletions.find_all()
        for key, end in self._owned.topic_deletions.find_all().items():
            if key not in found or found[key].offset <= end.offset:
                found[key] = end
        return found

    def forget_deletions(self, topics: Collection[str]) -> None:
        self._owned.kept_deletions.forget(topics)
