"""A clock for a whole store in a random test."""

from __future__ import annotations

import threading

from tieredstore.clock import ManualClock

_STEPPED = ("MainThread", "tiered-upload", "tiered-recovery", "tiered-fetch")
_STILL = (
    *("tiered-dispatcher", "tiered-expiry", "tiered-backup", "tiered-index", "tiered-trace"),
    *("tiered-writer", "store-", "local", "clean", "reput", "flush", "commit"),
)
_ROUND_MS = 500
"""A wait of at least this time (ms) is the pause between two rounds of a background loop. Shorter
waits are pauses within a request."""


class StoreClock(ManualClock):
    """Clock of a store without background loops, whose rounds the test runs. Waiting for another
    thread takes a short time, and advances the clock a little."""

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        name = threading.current_thread().name
        if name.startswith(_STILL) and timeout_ms >= _ROUND_MS:
            event.wait()
            return True
        if name.startswith(_STEPPED):
            return super().wait(event, timeout_ms)
        if event.wait(0.02):
            return True
        self.advance(min(timeout_ms, 50))
        return event.is_set()
