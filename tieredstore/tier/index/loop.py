"""The index's background thread: rounds at an interval, fewer of them while they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tieredstore.clock import Clock
from tieredstore.errors import TieredStoreError

INTERVAL_MS = 10_000
MAX_BACKOFF_MS = 600_000

_log = logging.getLogger(__name__)


class IndexLoop:
    """Calls `work` every 10 s. After failures the next call comes after 20 s, 40 s, … 10 min;
    when it is woken before, only `duty` is called (which puts wake it for)."""

    def __init__(
        self,
        clock: Clock,
        work: Callable[[], None],
        duty: Callable[[], None],
        report: Callable[[str, TieredStoreError], None],
    ) -> None:
        self._clock = clock
        self._work = work
        self._duty = duty
        self._report = report
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Begin; once."""
        assert self._thread is None
        self._thread = threading.Thread(target=self.run, name="tiered-index", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do what is due now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the round in progress. Idempotent."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self) -> None:
        """What the thread does, until `stop`."""
        failures = 0
        retry_ms = 0
        while not self._stopping:
            try:
                # A clock that was set back makes no wait longer.
                if failures and 0 < retry_ms - self._clock.now_ms() <= MAX_BACKOFF_MS:
                    self._duty()
                else:
                    self._work()
                    failures = 0
            except TieredStoreError as error:
                failures += 1
                self._report("background loop", error)
            except Exception:
                failures += 1
                _log.exception("index: background loop failed")
            delay_ms = min(INTERVAL_MS << min(failures, 16), MAX_BACKOFF_MS)
            if failures:
                retry_ms = self._clock.now_ms() + delay_ms
            if self._clock.wait(self._wake, delay_ms) and not self._stopping:
                self._wake.clear()
