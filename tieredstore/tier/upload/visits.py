"""Visits: the queues of one scan, shared by its workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Unavailable
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

GIVE_UP_AFTER = 16
"""Visits in a row that find the backend unavailable, after which it is taken to be away: the scan
leaves the others alone."""
FAILING_MS = 5_000
"""How long a scan tries queues that failed before, once it knows that the backend answers."""
STORED_TOGETHER = 16
"""Small uploads that wait in memory for one look at the writer epoch, at most; where they are
stored in one object, so many as fill it."""


ROLL_WAIT_MS = 5_000
"""How long a queue waits for others that need new segments too."""


class Visits:
    """Thread-safe. A queue with more to do goes to the end; one that needs new segments waits until
    `take_full` gives it away, for `visit_again`.

    failing: queues whose last visit failed, the one that waits longest first. They come after all
    others: whatever each of them fails of, and however long it takes, the others have had their
    turn. After a visit that finds the backend unavailable the next queue is one from elsewhere in
    the list, so that the queues of one broken topic are not taken for the backend. gathered_bytes:
    of uploads that are stored together, 0: each by itself.
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
        """Whether the backend is taken to be away."""
        # Queues that failed before say nothing of a backend that took another's messages.
        is_known = self._has_answered and self._failing_since_ms is not None
        return self._unavailable >= GIVE_UP_AFTER and not is_known

    def take(self) -> QueueKey | None:
        with self._lock:
            if self.given_up:
                return None
            if self._queue:
                return self._queue.popleft()
            return self._take_failing()

    def _take_failing(self) -> QueueKey | None:
        now_ms = self._clock.monotonic_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if not self._failing or now_ms - self._failing_since_ms > FAILING_MS:
            return None
        return self._failing.popleft()

    def put_stored(self, outcome: DispatchOutcome) -> list[DispatchOutcome]:
        """Keep an upload that is stored; returns those to be confirmed by the caller, if it is
        time."""
        with self._lock:
            self._stored.append(outcome)
            self._stored_bytes += outcome.stored.size_bytes if outcome.stored is not None else 0
            return self._take_stored() if self._is_enough() else []

    def _is_enough(self) -> bool:
        if self._gathered_bytes:
            return self._stored_bytes >= self._gathered_bytes
        return len(self._stored) >= STORED_TOGETHER

    def take_stored(self) -> list[DispatchOutcome]:
        """Take all uploads that are stored, for the caller to confirm."""
        with self._lock:
            return self._take_stored()

    def _take_stored(self) -> list[DispatchOutcome]:
        taken, self._stored, self._stored_bytes = self._stored, [], 0
        return taken

    def take_full(self, *, at_once: bool) -> dict[QueueKey, int]:
        """Take the queues that need new segments, with the room that each needs, bytes; none before
        one of them has waited for ROLL_WAIT_MS, unless it is to be at once."""
        with self._lock:
            if not self._full:
                return {}
            waited_ms = self._clock.monotonic_ms() - self._full_since_ms
            if not at_once and waited_ms <= ROLL_WAIT_MS:
                return {}
            full, self._full = self._full, {}
            return full

    def visit_again(self, key: QueueKey) -> None:
        """Put a queue at the end."""
        with self._lock:
            self._queue.append(key)

    def put_back(self, outcome: DispatchOutcome) -> None:
        """Note what a visit came to, with what earlier visits of the scan did."""
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
