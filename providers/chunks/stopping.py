"""The time that a provider's stop may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.service_thread import WakeEvent


class StopLimit:
    """Calls `end` once half of `close_timeout_ms` has passed since `begin`: the other half is for
    what waits for the requests that end by it."""

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
        """Start the thread that waits for `begin`, which may then come from a signal handler.
        Idempotent."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="tiered-stop-limit", daemon=True)
                with suppress(RuntimeError):  # the interpreter ends, and starts no threads
                    thread.start()
                self._thread = thread

    def begin(self) -> None:
        """Let the time begin. Idempotent."""
        if self._begin_ms is None:
            self._begin_ms = self._monotonic_ms()
            self._begun.set()

    def left_ms(self) -> int:
        """Return how much time requests have left, ms; all of it before `begin`."""
        return self._left_of(self._limit_ms)

    def left_to_wait_ms(self) -> int:
        """Return for how long, ms, one may wait for what ends with its requests."""
        return self._left_of(2 * self._limit_ms)

    def _left_of(self, time_ms: int) -> int:
        if self._begin_ms is None:
            return time_ms
        return max(0, time_ms - (self._monotonic_ms() - self._begin_ms))

    def finish(self) -> None:
        """Have no limit any more, as everything has ended. Idempotent."""
        self._over.set()
        self._begun.set()

    def _watch(self) -> None:
        self._begun.wait()
        if not self._over.wait(self._limit_ms / 1000):
            self._end()
