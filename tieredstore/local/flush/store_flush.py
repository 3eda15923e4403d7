"""Flushes log, queues and index on demand and in the background, then writes the checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.dispatch.reput import Reput
from tieredstore.local.flush.log_flush import CommitLogFlush
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.recovery.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from tieredstore.local.running_flags import RunningFlag, RunningFlags
from tieredstore.service_thread import ServiceHealth, ServiceThread, WakeEvent

_MAX_BACKOFF_MS: Final = 10_000
_PAUSES_PER_SYNC: Final = 9
"""Minimum pause after a flush of all queues, in multiples of its duration. Flushes then take at
most a tenth of the time, even with many queues."""
_LAST_ATTEMPTS: Final = 10
_LAST_PAUSE_S: Final = 0.1


class StoreFlush:
    """Flush of a store's log, queues and index. After a failed sync, nothing is flushed again and
    the flag NOT_WRITEABLE is raised. The background loops always use the machine's clock, even if
    the store uses another one. `after_round`: called by a loop after each round, even a failed
    one."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueueStoreInterface,
        index: IndexService,
        puts: RowBuffer,
        reput: Reput,
        flags: RunningFlags,
    ) -> None:
        self._root = root
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._puts = puts
        self._reput = reput
        self._flags = flags
        self.after_round: Callable[[], object] = lambda: None
        self._error: TieredStoreError | None = None
        self._lock = threading.Lock()
        self._checkpoint = Checkpoint()
        self._is_known = False  # whether `_checkpoint` is the content of the file
        self._is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self._log_flush = CommitLogFlush(
            log,
            puts,
            self._note_failure,
            sync_flush=self._is_sync,
            timeout_ms=lambda: config.sync_flush_timeout_ms,
        )
        self._thorough_s = self._log_thorough_s = time.monotonic()
        self._pause_s = 0.0
        self._wake = WakeEvent()
        self._services = [self._make_log_service(), self._make_queue_service()]
        if self._is_sync:
            self._services.append(
                ServiceThread(
                    "flush-watcher",
                    self._log_flush.expire_rounds,
                    lambda: max(min(config.sync_flush_timeout_ms // 20, 1_000), 10),
                )
            )

    def _make_log_service(self) -> ServiceThread:
        work = self._run_group_commits if self._is_sync else self._flush_log_at_intervals
        return ServiceThread(
            "flush-commit-log",
            work,
            lambda: self._config.flush_interval_commit_log_ms,
            waits_first=True,
            max_backoff_ms=_MAX_BACKOFF_MS,
            wake_event=self._wake,
        )

    def _make_queue_service(self) -> ServiceThread:
        return ServiceThread(
            "flush-consume-queue",
            self._flush_queues_at_intervals,
            lambda: self._config.flush_interval_consume_queue_ms,
            waits_first=True,
            max_backoff_ms=_MAX_BACKOFF_MS,
        )

    # Life

    def start(self) -> None:
        """Start the background loops. With SYNC_FLUSH, puts wait from now on."""
        self._log_flush.open()
        for service in self._services:
            service.start()
        self._wake_at_next_put()

    def stop(self) -> None:
        """Stop the loops and flush the log. Later puts do not wait for a flush. Raises the errors
        of `sync_log`."""
        for service in self._services:
            service.stop()
        try:
            for attempt in range(1, _LAST_ATTEMPTS + 1):
                try:
                    self._log_flush.flush()
                    return
                except Exhausted:
                    if attempt == _LAST_ATTEMPTS:
                        raise
                    time.sleep(_LAST_PAUSE_S)
        finally:
            self._log_flush.give_up()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loops."""
        return [service.health() for service in self._services]

    # In the background

    def _run_group_commits(self) -> None:
        while not self._services[0].is_stopping and self._log_flush.flush():
            self._services[0].report_progress()
        self._wake_at_next_put()

    def _flush_log_at_intervals(self) -> None:
        """Flush the log under ASYNC_FLUSH: when enough pages are dirty, and completely at
        intervals."""
        now_s = time.monotonic()
        since_ms = (now_s - self._log_thorough_s) * 1000
        is_thorough = since_ms >= self._config.flush_commit_log_thorough_interval_ms
        self._log_flush.flush(0 if is_thorough else self._config.flush_commit_log_least_pages)
        if is_thorough:
            self._log_thorough_s = now_s
        self._wake_at_next_put()

    def _wake_at_next_put(self) -> None:
        config = self._config
        wakes = config.wake_flush_when_put_message and not config.flush_commit_log_timed
        if self._is_sync or wakes:
            self._puts.wake_at_put(self._wake, self._log.flushed_offset)

    def _flush_queues_at_intervals(self) -> None:
        """Flush all queues and write the checkpoint, if this is due. Otherwise flush only the
        queues with enough dirty pages."""
        try:
            self._flush_what_is_due()
        finally:
            self.after_round()

    def _flush_what_is_due(self) -> None:
        begin_s = time.monotonic()
        since_s = begin_s - self._thorough_s
        longest_s = self._config.flush_consume_queue_thorough_interval_ms / 1000
        if since_s >= min(self._pause_s, longest_s):
            self.flush()
            self._thorough_s = time.monotonic()
            self._pause_s = (self._thorough_s - begin_s) * _PAUSES_PER_SYNC
        else:
            self._sync(lambda: self._queues.sync(self._config.flush_consume_queue_least_pages))

    # On demand

    def sync_log(self) -> None:
        """Sync the log to disk up to its current end. Raises the errors of `flush`."""
        self._log_flush.flush()

    def flush(self) -> None:
        """Sync all dispatched messages to disk, then write the checkpoint. Raises Exhausted for a
        temporary error. The next call or the background loops then continue. Raises Unavailable or
        Corrupt for a permanent error, on this and all later calls. The system does not retry a
        failed write, so a later successful sync would prove nothing."""
        self._sync(self._flush_all)

    def _sync(self, work: Callable[[], object]) -> None:
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                work()
            except Exhausted:
                raise
            except TieredStoreError as error:
                self._error = error
                if self._log_flush.error is None:
                    self._note_failure(error)
                raise

    def _note_failure(self, error: TieredStoreError) -> None:
        reason = f"a flush failed: {error}"
        self._flags.set(RunningFlag.NOT_WRITEABLE, reason, lasting=True)

    def _flush_all(self) -> None:
        if not self._is_known:
            self._checkpoint, self._is_known = read_checkpoint(self._root), True
        before = astuple(self._checkpoint)
        end, timestamp_ms = self._puts.mark_end()
        # In this order: messages with that time end at that offset, or follow it directly.
        dispatched_ms, dispatched = self._reput.timestamp_ms, self._reput.offset
        built = self._reput.built_offset
        self._log_flush.flush()
        self._queues.sync()
        checkpoint = self._checkpoint
        if built != checkpoint.logics_physical_offset:
            self._index.sync()
        checkpoint.index_msg_timestamp_ms = self._index.end_timestamp_ms
        if timestamp_ms > 0 and self._log.flushed_offset >= end:
            checkpoint.physic_msg_timestamp_ms = timestamp_ms
            # Other messages of that millisecond may not be dispatched yet.
            logics_ms = timestamp_ms if dispatched >= end else dispatched_ms - 1
            logics_ms = max(logics_ms, checkpoint.logics_msg_timestamp_ms)
            checkpoint.logics_msg_timestamp_ms = min(logics_ms, timestamp_ms)
        checkpoint.logics_physical_offset = min(built, self._log.flushed_offset)
        if astuple(checkpoint) != before:
            self._is_known = False  # until the file has it
            write_checkpoint(self._root, checkpoint)
            self._is_known = True
