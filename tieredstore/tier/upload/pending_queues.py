"""PendingQueues: which queues a scan visits, without a look at all the others.

Of 100,000 queues few have got messages since the last scan. Where the source says which, a queue
is looked at when it has changed, and again in each scan until there is nothing to do for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from tieredstore.contracts.dispatch_source import DispatchSource, NotedChanges, QueueKey
from tieredstore.errors import TieredStoreError
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.key_upload import KeyUpload
from tieredstore.tier.upload.queue_state import QueueState


class _Need(enum.Enum):
    VISIT = enum.auto()
    LATER = enum.auto()  # there is something to do, which is not due
    NOTHING = enum.auto()


class PendingQueues:
    """One caller at a time. states: of the queues that were visited, as the dispatcher has them."""

    def __init__(
        self,
        source: DispatchSource,
        flat_files: FlatFileStore,
        topic_filter: TopicFilter,
        states: Mapping[QueueKey, QueueState],
    ) -> None:
        self._source = source
        self._flat_files = flat_files
        self._topic_filter = topic_filter
        self._states = states
        self._keys: dict[QueueKey, None] = {}
        self._seen: tuple[int, bool] | None = None  # with what all were looked at

    def find(self, failing: Iterable[QueueKey], keys: KeyUpload | None) -> list[QueueKey]:
        """Find the queues to be visited now. failing: whose last visit failed; keys: what puts keys
        in the index, None while none are put."""
        failing = set(failing)
        candidates = self._take_candidates(keys is not None)
        candidates.update(dict.fromkeys(failing))
        self._keys = candidates  # whatever comes, none of them is forgotten
        needs = {key: self._find_need(key, keys, key in failing) for key in candidates}
        if self._topic_filter.is_settled:  # else the patterns may be as before at the next look
            self._keys = {key: None for key, need in needs.items() if need is not _Need.NOTHING}
        return [key for key, need in needs.items() if need is _Need.VISIT]

    def _take_candidates(self, has_keys: bool) -> dict[QueueKey, None]:
        source, seen = self._source, (self._topic_filter.version, has_keys)
        if not isinstance(source, NotedChanges):
            return dict.fromkeys(source.queues())
        changed = source.take_changed()
        if seen != self._seen:
            # What was settled may not be any more, for topics or keys that are wanted now.
            found = dict.fromkeys(source.queues())
            self._seen = seen  # now that this did not fail
            return found
        return self._keys | dict.fromkeys(changed)

    def _find_need(self, key: QueueKey, keys: KeyUpload | None, is_failing: bool) -> _Need:
        if not self._topic_filter.is_uploaded(key.topic):
            return _Need.NOTHING
        try:
            available = self._source.queue_range(key)
        except TieredStoreError:
            return _Need.VISIT  # it says what is wrong with it
        if available is None:
            return _Need.NOTHING
        file = self._flat_files.get(*key)
        if file is None or not file.is_initialised:
            has_messages = available.min_offset < available.max_offset
            return _Need.VISIT if has_messages else _Need.NOTHING
        state = self._states.get(key)
        if state is None or state.file is not file or is_failing:
            return _Need.VISIT
        # What is stored and not committed needs a visit, however the last one ended.
        if file.has_uncommitted or file.consume_queue_max_offset != available.max_offset:
            return _Need.VISIT
        if keys is None or state.indexed:
            return _Need.NOTHING
        return _Need.VISIT if keys.is_due(state) else _Need.LATER
