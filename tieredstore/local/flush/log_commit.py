"""CommitLogCommit: copies what waits in the transient store pool to the files of the log."""

from __future__ import annotations

import contextlib
import time

from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import DURABLE
from tieredstore.errors import TieredStoreError
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer
from tieredstore.service_thread import ServiceHealth, ServiceThread, WakeEvent

_MAX_BACKOFF_MS = 10_000


class CommitLogCommit:
    """The loop that makes messages of the pool readable (Java's CommitRealTimeService). A disk that
    is full hinders a round; the next one goes on."""

    def __init__(self, config: StoreConfig, log: CommitLog, puts: RowBuffer) -> None:
        self._log = log
        self._puts = puts
        self._is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self._config = config
        self._last_s = 0.0
        self._told_offset = 0
        self._wake = WakeEvent()
        self._loop = ServiceThread(
            "commit-commit-log",
            self._commit_at_intervals,
            lambda: config.commit_interval_commit_log_ms,
            waits_first=True,
            max_backoff_ms=_MAX_BACKOFF_MS,
            wake_event=self._wake,
        )

    def start(self) -> None:
        """Begin to commit in the background."""
        self._loop.start()
        self._wake_at_next_put(self._log.readable_offset)

    def stop(self) -> None:
        """End the loop and commit what waits; what cannot be committed now, the flush tries
        again, and says why."""
        self._loop.stop()
        with contextlib.suppress(TieredStoreError):
            self.commit()

    def health(self) -> ServiceHealth:
        """Tell how the loop is."""
        return self._loop.health()

    def _commit_at_intervals(self) -> None:
        now_s = time.monotonic()
        thorough_s = self._config.commit_commit_log_thorough_interval_ms / 1000
        is_thorough = now_s - self._last_s >= thorough_s
        seen = self._log.max_offset
        self.commit(0 if is_thorough else self._config.commit_commit_log_least_pages)
        if is_thorough:
            self._last_s = now_s
        self._wake_at_next_put(seen)

    def _wake_at_next_put(self, seen: int) -> None:
        """Let the next put begin a round; a later one than made the log end there."""
        if self._config.wake_commit_when_put_message:
            self._puts.wake_at_put(self._wake, seen)

    def commit(self, least_pages: int = 0) -> None:
        """Commit what was put so far; the dispatch sees it then. Raises what `CommitLog.commit`
        raises."""
        if self._is_sync:  # the flush seals what it waits for
            if self._log.commit(least_pages):
                self._puts.wake.set()
            return
        _, sealed_offset = self._puts.seal(DURABLE)
        self._log.commit(least_pages)
        # Not by what was committed here: the flush commits too, before the seal or behind it.
        end = min(sealed_offset, self._log.readable_offset)
        if end > self._told_offset:
            self._told_offset = end
            self._puts.wake.set()
