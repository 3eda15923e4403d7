"""Queue offsets where reads fail permanently because bytes of the tier are lost or damaged."""

from __future__ import annotations

import logging
import threading
from typing import Final, NamedTuple

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt

RETRY_MS: Final = 5_000
"""Time (ms) after a failed read for which gets return the same failure without a read."""
FORGET_MS: Final = 600_000
"""Time (ms) for which a failure at a queue offset is reported after the last failed read there."""
FORGET_LEFT_OUT_MS: Final = 86_400_000  # after the last read that left damage out
MOST_LEFT_OUT: Final = 1_000  # places
_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    offset: int
    tried_ms: int
    fault: str


class UnreadablePlaces:
    """Remembers, for each queue, the offset at which consumers are stuck because reads fail. The
    unreadable message is not skipped, because a lost object may come back. Also remembers damaged
    messages that reads omitted. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[QueueKey, _Place] = {}
        self._left_out: dict[tuple[QueueKey, int], _Place] = {}

    def note(self, key: QueueKey, offset: int, error: Corrupt) -> str:
        """Record a failed read and return a description of the failure. Only the first failure at a
        queue offset is logged."""
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
        """Record a successful read at a queue offset, and forget any failure there."""
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

    def note_left_out(self, key: QueueKey, first: int, last: int, count: int) -> None:
        """Record that a read omitted `count` damaged messages at offsets `first` to `last`."""
        fault = (
            f"{key.topic}, queue {key.queue_id}: consumers skip {count} damaged messages of the "
            f"queue offsets {first} to {last}"
        )
        with self._lock:
            self._left_out.pop((key, first), None)
            self._left_out[key, first] = _Place(first, self._clock.monotonic_ms(), fault)
            if len(self._left_out) > MOST_LEFT_OUT:
                del self._left_out[next(iter(self._left_out))]

    def list_left_out(self) -> list[str]:
        """Return the descriptions of damage from the last FORGET_LEFT_OUT_MS, newest first."""
        limit_ms = self._clock.monotonic_ms() - FORGET_LEFT_OUT_MS
        with self._lock:
            places = list(self._left_out.values())
        return [place.fault for place in reversed(places) if place.tried_ms >= limit_ms]
