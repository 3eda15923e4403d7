"""Selects the queues of a scan and distributes them among its workers. Often only a few of 100,000
queues have new messages. If the local store reports changes, a scan checks only the queues that
have changed or still have work."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Iterable, Mapping

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import DispatchSource, NotedChanges, QueueKey
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.key_upload import KeyUpload
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus, QueueState

GIVE_UP_AFTER = 16
"""Number of consecutive upload rounds with an unavailable backend after which a scan ends."""
FAILING_MS = 5_000
"""Maximum time (ms) that a scan spends on queues whose last round failed, after the backend has
answered again."""
STORED_TOGETHER = 16
"""Maximum number of small uploads that share one fence check, and wait for it in memory. Uploads
that share one object wait until the object is full."""
ROLL_WAIT_MS = 5_000
"""Time (ms) for which a queue waits for other queues that also need new segments."""


class _Need(enum.Enum):
    ROUND = enum.auto()
    LATER = enum.auto()  # work that is not due yet
    NOTHING = enum.auto()


class PendingQueues:
    """Finds the queues that need an upload round. Not thread-safe. `states`: the dispatcher's
    states of queues that had a round."""

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
        self._checked_with: tuple[int, bool] | None = None  # at the last check of all queues

    def find(self, failing: Iterable[QueueKey], keys: KeyUpload | None) -> list[QueueKey]:
        """Return the queues that need a round now. `failing`: queues whose last round failed.
        `keys`: puts keys into the index, or None while no keys are put."""
        failing = set(failing)
        candidates = self._take_candidates(keys is not None)
        candidates.update(dict.fromkeys(failing))
        self._keys = candidates  # so that none is lost after an error
        needs = {key: self._find_need(key, keys, key in failing) for key in candidates}
        if self._topic_filter.is_settled:  # else the patterns may change back before the next scan
            self._keys = {key: None for key, need in needs.items() if need is not _Need.NOTHING}
        return [key for key, need in needs.items() if need is _Need.ROUND]

    def _take_candidates(self, has_keys: bool) -> dict[QueueKey, None]:
        source, checked_with = self._source, (self._topic_filter.version, has_keys)
        if not isinstance(source, NotedChanges):
            return dict.fromkeys(source.queues())
        changed = source.take_changed()
        if checked_with != self._checked_with:
            # Topics or keys may be needed now that were not before.
            candidates = dict.fromkeys(source.queues())
            self._checked_with = checked_with  # only if that did not fail
            return candidates
        return self._keys | dict.fromkeys(changed)

    def _find_need(self, key: QueueKey, keys: KeyUpload | None, is_failing: bool) -> _Need:
        if not self._topic_filter.is_uploaded(key.topic):
            return _Need.NOTHING
        try:
            available = self._source.queue_range(key)
        except TieredStoreError:
            return _Need.ROUND  # which reports the error
        if available is None:
            return _Need.NOTHING
        file = self._flat_files.get(*key)
        if file is None or not file.is_initialised:
            has_messages = available.min_offset < available.max_offset
            return _Need.ROUND if has_messages else _Need.NOTHING
        state = self._states.get(key)
        if state is None or state.file is not file or is_failing:
            return _Need.ROUND
        # Stored bytes that are not committed need a round, however the last one ended.
        if file.has_uncommitted or file.consume_queue_max_offset != available.max_offset:
            return _Need.ROUND
        if keys is None or state.indexed:
            return _Need.NOTHING
        return _Need.ROUND if keys.is_due(state) else _Need.LATER


class UploadRounds:
    """Upload rounds of one scan. Thread-safe. A queue with more work moves to the end. A queue that
    needs new segments waits until `take_full` returns it, and is added again with `retry`. If the
    backend is unavailable, the next queue comes from another part of the list, so that the queues
    of one broken topic do not end the scan.

    `failing`: queues whose last round failed, longest waiting first. They come last, so that they
    delay no other queue.
    `gathered_bytes`: size of uploads that are stored together, or 0.
    """

    def __init__(
        self,
        queue_keys: Iterable[QueueKey],
        failing: Iterable[QueueKey] = (),
        clock: Clock = SYSTEM_CLOCK,
        *,
        gathered_bytes: int = 0,
    ) -> None:
        self._queue = deque(queue_keys)
        self._failing = deque(failing)
        self._clock = clock
        self._lock = threading.Lock()
        self._stride = len(self._queue) // GIVE_UP_AFTER + 1
        self._unavailable = 0
        self._has_answered = False
        self._failing_since_ms: int | None = None
        self._stored: list[DispatchOutcome] = []
        self._stored_bytes = 0
        self._gathered_bytes = gathered_bytes
        self._full: dict[QueueKey, int] = {}
        self._full_since_ms = 0
        self.outcomes: dict[QueueKey, DispatchOutcome] = {}

    @property
    def given_up(self) -> bool:
        """Whether the backend is considered unavailable. No more rounds begin."""
        # It is available as long as it accepts messages of queues that did not fail before.
        is_known = self._has_answered and self._failing_since_ms is not None
        return self._unavailable >= GIVE_UP_AFTER and not is_known

    def take(self) -> QueueKey | None:
        """Take the next queue that needs a round."""
        with self._lock:
            if self.given_up:
                return None
            if self._queue:
                return self._queue.popleft()
            now_ms = self._clock.monotonic_ms()
            if self._failing_since_ms is None:
                self._failing_since_ms = now_ms
            if not self._failing or now_ms - self._failing_since_ms > FAILING_MS:
                return None
            return self._failing.popleft()

    def put_stored(self, outcome: DispatchOutcome) -> list[DispatchOutcome]:
        """Add a stored upload. If there are enough, returns all stored uploads, which the caller
        must confirm now."""
        with self._lock:
            self._stored.append(outcome)
            self._stored_bytes += outcome.stored.size_bytes if outcome.stored is not None else 0
            if self._gathered_bytes:
                is_enough = self._stored_bytes >= self._gathered_bytes
            else:
                is_enough = len(self._stored) >= STORED_TOGETHER
            return self._take_stored() if is_enough else []

    def take_stored(self) -> list[DispatchOutcome]:
        """Take all stored uploads, for the caller to confirm."""
        with self._lock:
            return self._take_stored()

    def _take_stored(self) -> list[DispatchOutcome]:
        taken, self._stored, self._stored_bytes = self._stored, [], 0
        return taken

    def take_full(self, *, at_once: bool) -> dict[QueueKey, int]:
        """Take the queues that need new segments, with the bytes that each needs. Returns none
        until one has waited for ROLL_WAIT_MS, unless `at_once` is set."""
        with self._lock:
            waited_ms = self._clock.monotonic_ms() - self._full_since_ms
            if not self._full or (not at_once and waited_ms <= ROLL_WAIT_MS):
                return {}
            full, self._full = self._full, {}
            return full

    def retry(self, key: QueueKey) -> None:
        """Move a queue to the end of the list."""
        with self._lock:
            self._queue.append(key)

    def put_back(self, outcome: DispatchOutcome) -> None:
        """Record the outcome of a round, and add it to earlier outcomes of the queue."""
        with self._lock:
            self._has_answered |= outcome.messages > 0
            before = self.outcomes.get(outcome.key)
            if before is not None:
                outcome.messages += before.messages
                outcome.size_bytes += before.size_bytes
                outcome.hole = outcome.hole or before.hole
                outcome.left_out = before.left_out + outcome.left_out
                if outcome.messages and outcome.error is None:
                    outcome.status = DispatchStatus.UPLOADED
            self.outcomes[outcome.key] = outcome
            if isinstance(outcome.error, Unavailable):
                self._unavailable += 1
                self._queue.rotate(-self._stride)
            else:
                self._unavailable = 0
                if outcome.room_bytes is not None and outcome.error is None:
                    if not self._full:
                        self._full_since_ms = self._clock.monotonic_ms()
                    self._full[outcome.key] = outcome.room_bytes
                elif outcome.more and outcome.error is None:
                    self._queue.append(outcome.key)
