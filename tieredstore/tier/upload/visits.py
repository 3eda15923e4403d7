"""Visits: the queues of one scan, shared by its workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Unavailable
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

GIVE_UP_AFTER = 16
"""Visits in a row that find the backend unavailable, after which a scan leaves the others alone."""
STORED_TOGETHER = 16
"""Small uploads that wait in memory for one look at the writer epoch, at most."""


class Visits:
    """Thread-safe. A queue with more to do goes to the end."""

    def __init__(self, queue_keys: Iterable[QueueKey]) -> None:
        self._queue = deque(queue_keys)
        self._lock = threading.Lock()
        self._unavailable = 0
        self._stored: list[DispatchOutcome] = []
        self.outcomes: dict[QueueKey, DispatchOutcome] = {}

    @property
    def given_up(self) -> bool:
        return self._unavailable >= GIVE_UP_AFTER

    def take(self) -> QueueKey | None:
        with self._lock:
            return self._queue.popleft() if self._queue and not self.given_up else None

    def put_stored(self, outcome: DispatchOutcome) -> list[DispatchOutcome]:
        """Keep an upload that is stored; returns those to be confirmed by the caller, if it is
        time."""
        with self._lock:
            self._stored.append(outcome)
            return self._take_stored() if len(self._stored) >= STORED_TOGETHER else []

    def take_stored(self) -> list[DispatchOutcome]:
        """Take all uploads that are stored, for the caller to confirm."""
        with self._lock:
            return self._take_stored()

    def _take_stored(self) -> list[DispatchOutcome]:
        taken, self._stored = self._stored, []
        return taken

    def put_back(self, outcome: DispatchOutcome) -> None:
        """Note what a visit came to, with what earlier visits of the scan did."""
        with self._lock:
            before = self.outcomes.get(outcome.key)
            if before is not None:
                outcome.messages += before.messages
                outcome.size_bytes += before.size_bytes
                outcome.hole = outcome.hole or before.hole
                if outcome.messages and outcome.error is None:
                    outcome.status = DispatchStatus.UPLOADED
            self.outcomes[outcome.key] = outcome
            if isinstance(outcome.error, Unavailable):
                self._unavailable += 1
            else:
                self._unavailable = 0
                if outcome.more and outcome.error is None:
                    self._queue.append(outcome.key)
