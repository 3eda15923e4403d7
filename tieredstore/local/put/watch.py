"""Measures puts from another thread, at no cost for the puts. Takes samples, and measures how long
the put lock is held."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.statistics import SLOW_PUT_MS
from tieredstore.service_thread import ServiceHealth, ServiceThread

WATCH_INTERVAL_MS: Final = 50
_log = logging.getLogger(__name__)


class _SlowHold(NamedTuple):
    """Put that has held the lock for `held_ms`. Its store time is at most `until_ms`."""

    at: int
    until_ms: int
    held_ms: float


class PutWatch:
    """Thread that regularly sends a put of one queue through the general path, where puts are
    timed. While a put holds the lock for longer than `busy_timeout_ms` (0: no limit), other puts
    are rejected with OS_PAGE_CACHE_BUSY. `look_further`: called at each check of the lock."""

    def __init__(
        self,
        appender: MessageAppender,
        busy_timeout_ms: Callable[[], int],
        look_further: Callable[[], object] = lambda: None,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._appender = appender
        self._look_further = look_further
        self._now_ms = now_ms
        self._busy_timeout_ms = busy_timeout_ms
        self._held_since_ms: float | None = None
        self._held_at = -1
        self._seen_end = -1
        self._slow: _SlowHold | None = None  # only its position is logged
        self._loop = ServiceThread("put-watch", self.look, WATCH_INTERVAL_MS)

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the thread."""
        return [self._loop.health()]

    def look(self) -> None:
        """Check how long the put lock has been held, then take a sample."""
        self._look_further()
        held_ms = self._measure_hold()
        self._report_slow_hold(held_ms)
        busy_timeout_ms = self._busy_timeout_ms()
        if 0 < busy_timeout_ms < held_ms:
            self._appender.refuse_busy(
                f"a put has had the lock for more than {busy_timeout_ms} ms "
                "(osPageCacheBusyTimeOutMills): the disk does not keep up"
            )
        elif not held_ms:
            self._appender.refuse_busy(None)
            end = self._appender.find_end()
            if end != self._seen_end:  # a put is in progress
                self._seen_end = end
                self._appender.sample_next_put()

    def _report_slow_hold(self, held_ms: float) -> None:
        slow = self._slow
        if held_ms >= SLOW_PUT_MS:
            if slow is None or slow.at != self._held_at:
                slow = _SlowHold(self._held_at, self._appender.find_time(), held_ms)
                _log.warning(
                    "a put at %d of the commit log has had the lock for %.0f ms", slow.at, held_ms
                )
            self._slow = slow._replace(held_ms=held_ms)
        elif slow is not None:
            size = self._appender.measure_put(slow.at, slow.until_ms)
            if size:
                what = f"at {slow.at} of the commit log, with the lock, a put"
                self._appender.statistics.report_slow_put(what, slow.held_ms, size)
            if size is not None:
                self._slow = None

    def _measure_hold(self) -> float:
        at = self._appender.find_held_lock()
        now_ms = self._now_ms()
        if at is None:
            self._held_since_ms = None
            return 0
        if self._held_since_ms is None or at != self._held_at:
            self._held_since_ms, self._held_at = now_ms, at
        return max(now_ms - self._held_since_ms, 0)
