"""Time limit of a provider's stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.service_thread import WakeEvent


class StopLimit:
    """Calls `end` to interrupt running requests when half of `close_timeout_ms` has passed since
    `begin`. Callers have the other half to wait for these requests."""

    def __init__(self, settings: ChunkSettings, end: Callable[[], None]) -> None:
        self._monotonic_ms = settings.monotonic_ms
        self._limit_ms = settings.close_timeout_ms // 2
        self._end = end
        self._lock = threading.Lock()
        self._begun = WakeEvent()
        self._over = threading.Event()
        self._begin_ms: int | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start the thread that waits for `begin`, so that a signal handler can call `begin`.
        Idempotent."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="tiered-stop-limit", daemon=True)
                with suppress(RuntimeError):  # The interpreter ends, and starts no threads.
                    thread.start()
                self._thread = thread

    def begin(self) -> None:
        """Start the time limit. Idempotent."""
        if self._begin_ms is None:
            self._begin_ms = self._monotonic_ms()
            self._begun.set()

    def left_ms(self) -> int:
        """Return the time left for requests, ms. Before `begin` this is the whole limit."""
        return self._snapshot_of(self._limit_ms)

    def left_to_wait_ms(self) -> int:
        """Return the time left to wait for running requests, ms."""
        return self._snapshot_of(2 * self._limit_ms)

    def _snapshot_of(self, time_ms: int) -> int:
        if self._begin_ms is None:
            return time_ms
        return max(0, time_ms - (self._monotonic_ms() - self._begin_ms))

    def finish(self) -> None:
        """Cancel the time limit, because all work has ended. Idempotent."""
        self._over.set()
        self._begun.set()

    def _watch(self) -> None:
        self._begun.wait()
        if not self._over.wait(self._limit_ms / 1000):
            self._end()
