"""Flushes the commit log and completes the puts that wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.contracts.durability import FlushFuture, PutMessageStatus
from tieredstore.contracts.message_store import DURABLE
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer
from tieredstore.service_thread import ServiceHealth, ServiceThread, WakeEvent

_MAX_BACKOFF_MS = 10_000


class CommitLogCommit:
    """Loop that makes messages of the buffer pool readable (Java's CommitRealTimeService). It
    retries later if the disk is full."""

    def __init__(self, config: StoreConfig, log: CommitLog, puts: RowBuffer) -> None:
        self._log = log
        self._puts = puts
        self._is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self._config = config
        self._last_s = 0.0
        self._woken_offset = 0
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
        """Start the commits in the background."""
        self._loop.start()
        self._wake_at_next_put(self._log.readable_offset)

    def stop(self) -> None:
        """Stop the loop and commit the remaining messages. If this fails, the flush retries it and
        reports the error."""
        self._loop.stop()
        with contextlib.suppress(TieredStoreError):
            self.commit()

    def health(self) -> ServiceHealth:
        """Return the health of the loop."""
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
        """Wake the loop at the next put, or immediately if the log has grown beyond `seen`."""
        if self._config.wake_commit_when_put_message:
            self._puts.wake_at_put(self._wake, seen)

    def commit(self, least_pages: int = 0) -> None:
        """Commit all messages put before the call, so that the dispatch can read them. Raises the
        errors of `CommitLog.commit`."""
        if self._is_sync:  # the flush seals its round
            if self._log.commit(least_pages):
                self._puts.wake.set()
            return
        _, sealed_offset = self._puts.seal(DURABLE)
        self._log.commit(least_pages)
        # Does not depend on this commit, because the flush commits too.
        end = min(sealed_offset, self._log.readable_offset)
        if end > self._woken_offset:
            self._woken_offset = end
            self._puts.wake.set()


PAGE_BYTES: Final = 4096
_LATE: Final = PutMessageStatus.FLUSH_DISK_TIMEOUT


@dataclass(slots=True, eq=False)
class _Round:
    """Group of puts that wait for the same flush. Once the group is sealed, no put can join it.
    `end_offset`: end of the log after the last put of a sealed group. `sealed_s`: monotonic time
    after all puts of a sealed group."""

    future: FlushFuture
    end_offset: int = -1
    sealed_s: float = 0.0

    @property
    def is_sealed(self) -> bool:
        return self.end_offset >= 0


class CommitLogFlush:
    """Flush of one log. Thread-safe. A sync does not block puts.

    `puts`: buffer of the put path, which gives each put the future to wait for.
    `sync_flush`: whether puts wait (SYNC_FLUSH), for at most `timeout_ms`.
    `on_failure`: called once, after a failed sync. The log is never synced again after that,
    because the system may have dropped the bytes of the failed write.
    """

    def __init__(
        self,
        log: CommitLog,
        puts: RowBuffer,
        on_failure: Callable[[TieredStoreError], object],
        *,
        sync_flush: bool,
        timeout_ms: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.error: TieredStoreError | None = None
        self._log = log
        self._puts = puts
        self._on_failure = on_failure
        self._sync_flush = sync_flush
        self._timeout_ms = timeout_ms
        self._now_s = now_s
        self._sync_lock = threading.Lock()
        # Rounds begin one after the other. Of two concurrent begins, the second would seal the
        # first round before any put, and a sync would end it, so that later puts got a completed
        # future.
        self._begin_lock = threading.Lock()
        self._rounds_lock = threading.Lock()
        self._is_given_up = False
        self._rounds: list[_Round] = []  # the last one is open
        self._sealed_offset = 0

    def open(self) -> None:
        """Make later puts wait for the flush, if the store uses SYNC_FLUSH."""
        self._sealed_offset = self._log.max_offset
        if self._sync_flush:
            with self._begin_lock:
                self._is_given_up = False
                self._begin_round()

    def _begin_round(self) -> int:
        """Seal the current group of puts and begin a new one. Returns the current end of the log.
        The caller must hold `_begin_lock`."""
        begun = _Round(FlushFuture())
        with self._rounds_lock:
            self._rounds.append(begun)  # first, so that an interrupt loses no waiting put
        _, end = self._puts.seal(begun.future)
        now_s = self._now_s()
        with self._rounds_lock:
            for found in self._rounds[: self._rounds.index(begun)]:
                if not found.is_sealed:
                    found.end_offset, found.sealed_s = end, now_s
        return end

    def flush(self, least_pages: int = 0) -> bool:
        """Flush the readable log and complete the puts that waited for it. Returns whether anything
        was flushed. `least_pages`: do nothing for fewer dirty pages of 4,096 bytes, unless a file
        is full.

        Raises Exhausted for a temporary error, while the puts keep waiting. Raises Unavailable or
        Corrupt for a permanent error, on this and all later calls. The waiting puts then get
        FLUSH_DISK_TIMEOUT.
        """
        if self.error is not None:
            raise self.error
        is_waited_for = self._sync_flush and self._seal_round()
        if is_waited_for or not least_pages:
            self._log.commit()  # messages in the pool, if any
        if not is_waited_for and not self._has_dirty_pages(least_pages):
            return False
        with self._sync_lock:
            if self.error is not None:
                raise self.error
            try:
                flushed = self._log.flushed_offset
                if flushed < self._log.readable_offset:
                    flushed = self._log.sync()
            except Exhausted:
                raise
            except TieredStoreError as error:
                self._fail(error)
                raise
        if self._sync_flush:
            self._puts.wake.set()  # wakes the dispatch, which also waited
            self._end(flushed)
        return True

    def _has_dirty_pages(self, least_pages: int) -> bool:
        begin, end = self._log.flushed_offset, self._log.readable_offset
        if begin >= end:
            return False
        file_size = self._log.file_size
        pages = end // PAGE_BYTES - begin // PAGE_BYTES
        return pages >= least_pages or begin // file_size < end // file_size

    def _seal_round(self) -> bool:
        """Seal the current group of puts. Returns whether any sealed group still waits for its
        flush."""
        if self._log.max_offset > self._sealed_offset:
            with self._begin_lock:
                if not self._is_given_up and self._log.max_offset > self._sealed_offset:
                    self._sealed_offset = self._begin_round()
        return len(self._rounds) > 1

    def _end(self, flushed: int, late_s: float | None = None) -> None:
        """Complete the groups of puts that end at or before the log offset `flushed`. Other groups
        that were sealed at or before the monotonic time `late_s` get FLUSH_DISK_TIMEOUT."""
        on_disk, late, left = [], [], []
        with self._rounds_lock:
            for found in self._rounds:
                if not found.is_sealed:
                    left.append(found)
                elif found.end_offset <= flushed:
                    on_disk.append(found)
                elif late_s is not None and found.sealed_s <= late_s:
                    late.append(found)
                else:
                    left.append(found)
            self._rounds = left
        for found in on_disk:
            found.future.complete(PutMessageStatus.PUT_OK)
        for found in late:
            found.future.complete(_LATE)

    def expire_rounds(self) -> None:
        """Complete puts that have waited too long with FLUSH_DISK_TIMEOUT. Their messages stay in
        the log and are flushed later."""
        if self.error is None and self._seal_round():
            late_s = self._now_s() - self._timeout_ms() / 1000
            self._end(self._log.flushed_offset, late_s)

    def _fail(self, error: TieredStoreError) -> None:
        self.error = error
        self._on_failure(error)  # rejects later puts. Accepted puts are completed below
        self.give_up()

    def give_up(self) -> None:
        """Complete all waiting puts. Messages that are not on disk, and all later puts, get
        FLUSH_DISK_TIMEOUT."""
        if not self._sync_flush:
            return
        with self._begin_lock:
            self._is_given_up = True
            self._puts.seal(FlushFuture(_LATE))
        with self._rounds_lock:
            rounds, self._rounds = self._rounds, []
        for found in rounds:
            is_on_disk = found.is_sealed and found.end_offset <= self._log.flushed_offset
            found.future.complete(PutMessageStatus.PUT_OK if is_on_disk else _LATE)
