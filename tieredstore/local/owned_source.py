"""What a tier reads from a store that this process owns, and what it may do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from tieredstore.contracts.dispatch_source import ArrivedRuns, EndOfLife, QueueKey
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.topic_table import TopicTable

if TYPE_CHECKING:
    from tieredstore.local.message_store import DefaultMessageStore


class OwnedDispatchSource(LocalDispatchSource):
    """A DispatchSource, a HistorySource, a NotedChanges and an ObservedSource. find_end_offsets:
    see `set_history`; observe: sets who is told of what the store gets."""

    def __init__(
        self,
        store: DefaultMessageStore,
        list_queues: Callable[[], Iterable[QueueKey]],
        topics: Callable[[], TopicTable],
        flush: Callable[[], object],
        observe: Callable[[Callable[[ArrivedRuns], object] | None], object],
    ) -> None:
        super().__init__(store, list_queues, topics, flush)
        self._observe = observe
        self._owned = store
        self.find_end_offsets: Callable[[str], Mapping[int, int]] = lambda _topic: {}
        self._changed: set[QueueKey] = set()
        self._changed_lock = threading.Lock()
        # What was taken, while messages of it may not be on disk; the end of the log then.
        self._unflushed: set[QueueKey] = set()
        self._unflushed_until = 0

    def note_units(self, keys: Iterable[QueueKey]) -> None:
        """Note that queues have new units, once readers see these."""
        with self._changed_lock:
            self._changed.update(keys)

    def take_changed(self) -> AbstractSet[QueueKey]:
        """Return the queues with messages that `queue_range` may not have shown at the last call.
        Those that are not on disk it does not show yet: their queues are returned once more."""
        with self._changed_lock:
            taken, self._changed = self._changed, set()
        log = self._owned.commit_log
        # In this order: what is behind it is put after the queues were taken.
        until, flushed = log.readable_offset, log.flushed_offset
        found = taken | self._unflushed
        self._unflushed = set() if flushed >= self._unflushed_until else self._unflushed
        if flushed < until:
            self._unflushed, self._unflushed_until = self._unflushed | taken, until
        return found

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Tell somebody of the messages that gets find from now on; None: nobody."""
        self._observe(observer)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever put in the store."""
        return self._owned.commit_log.is_empty

    def set_history(self, find_end_offsets: Callable[[str], Mapping[int, int]]) -> None:
        """Let queues that the store does not have begin behind what is elsewhere."""
        self.find_end_offsets = find_end_offsets

    def begin_log_at(self, physical_offset: int) -> None:
        """Let the log of a new store begin at the first file boundary from a byte on."""
        self._owned.begin_log_at(physical_offset)

    def find_deleted_queues(self) -> dict[QueueKey, EndOfLife]:
        """Find the queues of topics that were deleted, with the end of the last deleted life."""
        return self._owned.topic_deletions.find_all()
