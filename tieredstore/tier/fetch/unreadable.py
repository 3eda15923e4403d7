"""Queue offsets at which reads fail permanently, because bytes of the tier are lost or damaged."""

from __future__ import annotations

import logging
import threading
from typing import Final, NamedTuple

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt

RETRY_MS: Final = 5_000
"""Time (ms) after a failed read during which gets return the same failure, without a read of the
tier."""
FORGET_MS: Final = 600_000
"""Time (ms) after the last failed read at a queue offset for which the failure is reported."""
_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    offset: int
    tried_ms: int
    fault: str


class UnreadablePlaces:
    """Remembers the queue offset in each queue at which consumers cannot continue. Thread-safe. No
    message is skipped, because a lost object may come back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[QueueKey, _Place] = {}

    def note(self, key: QueueKey, offset: int, error: Corrupt) -> str:
        """Record a failed read. Returns its description. The first failure at an offset is
        logged."""
        fault = (
            f"{key.topic}, queue {key.queue_id}: the message at queue offset {offset} cannot be "
            f"read, consumers wait there: {error}"
        )
        with self._lock:
            known = self._places.get(key)
            self._places[key] = _Place(offset, self._clock.monotonic_ms(), fault)
        if known is None or known.offset != offset:
            _log.error("%s", fault)
        return fault

    def find(self, key: QueueKey, offset: int, within_ms: int = RETRY_MS) -> str:
        """Return the description of a failure at this offset within the last `within_ms`, or ""."""
        place = self._places.get(key)
        if place is None or place.offset != offset:
            return ""
        return place.fault if self._clock.monotonic_ms() - place.tried_ms < within_ms else ""

    def note_read(self, key: QueueKey, offset: int) -> None:
        """Record a successful read. It ends a failure at this offset."""
        if self.find(key, offset, FORGET_MS):
            with self._lock:
                self._places.pop(key, None)

    def list_faults(self) -> list[str]:
        """Return the descriptions of the failures within the last FORGET_MS."""
        limit_ms = self._clock.monotonic_ms() - FORGET_MS
        with self._lock:
            kept = {key: one for key, one in self._places.items() if one.tried_ms >= limit_ms}
            self._places = kept
        return [place.fault for _, place in sorted(kept.items())]
