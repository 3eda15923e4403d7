"""Dispatch of appended messages to consume queues and index ("reput").

Normally the put path passes rows in memory. The log itself is read if rows are missing, at the
start or after too many rows were waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.dispatch.builders import IndexBuilder, RowDispatcher
from tieredstore.local.dispatch.log_rows import PASS_ROWS, LogRows, read_rows
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import ROW_FIELDS
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.running_flags import RunningFlag, RunningFlags, find_passing
from tieredstore.message.record import StoredMessage
from tieredstore.service_thread import ServiceHealth, ServiceState, ServiceThread

MAX_BEHIND_BYTES: Final = 4 << 30
"""Maximum number of undispatched log bytes while the dispatch is blocked."""
_GATHER_S: Final = 0.002
"""Pause (seconds) of the dispatch thread after each pass, so that the next pass has many rows. A
pass for one row costs nearly as much as one for a hundred."""
_RETRY_MS: Final = 50
_MAX_RETRY_MS: Final = 1_000
_log = logging.getLogger(__name__)


class Reput:
    """Builds consume queues and index in the order of the log.

    Passes run one at a time, in a background thread, or in the thread of a producer if too many
    rows are waiting. `offset` is the end of the log that was dispatched to the queues.

    After a temporary error (`held_up_by`), the thread retries from `offset`. Puts are accepted
    until `max_behind_bytes` wait in the log. After a permanent error, the dispatch stops and
    `error` has the cause. The flag WRITE_LOGICS_QUEUE_ERROR then rejects further puts, because
    readers could not find them.

    Messages put before the start get into their light queues if `enableMultiDispatch` is set at the
    start. Later messages get into a light queue if their put assigned an offset in it. A change of
    the setting therefore leaves no hole in a light queue.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: MessageAppender,
        queues: ConsumeQueueStoreInterface,
        index: IndexService,
        delays_ms: tuple[int, ...],
        flags: RunningFlags,
        config: StoreConfig,
    ) -> None:
        self.offset = 0
        self.error: TieredStoreError | None = None
        self.held_up_by: Exhausted | None = None
        self.max_behind_bytes = MAX_BEHIND_BYTES
        self._log = log
        self._appender = appender
        self._flags = flags
        self._config = config
        self._log_rows = LogRows(
            log, appender, queues.find_fault, has_light_queues=config.enable_lmq
        )
        self._index = IndexBuilder(index, flags, lambda: config.message_index_enable)
        self.dispatcher = RowDispatcher(log, appender, queues, self._index, delays_ms)
        if config.fills_light_queues:
            self.dispatcher.light_queues_from = 0
        self._lock = threading.RLock()  # taken before the put lock
        self._round_ended_s = 0.0
        # The put path wakes the loop by setting the event.
        self._loop = ServiceThread(
            "reput",
            self._run_passes,
            None,
            retry_ms=_RETRY_MS,
            max_backoff_ms=_MAX_RETRY_MS,
            on_error=lambda _: None,  # reported when it began
            wake_event=appender.wake,
        )

    @property
    def timestamp_ms(self) -> int:
        """Store time of the last dispatched message."""
        return self.dispatcher.timestamp_ms

    @timestamp_ms.setter
    def timestamp_ms(self, timestamp_ms: int) -> None:
        self.dispatcher.timestamp_ms = timestamp_ms

    @property
    def built_offset(self) -> int:
        """Position in the log (bytes) at which the dispatch continues after a restart. Queues and
        index have all earlier messages."""
        behind = self._index.behind_from
        return self.offset if behind is None else min(self.offset, behind)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Block the dispatch during a `with` block. This lock must be taken before the put lock."""
        with self._lock:
            yield

    def miss_index_from(self, offset: int) -> None:
        """Add the missing index entries from the log offset `offset` on while the dispatch
        continues."""
        self._index.behind_from = offset

    def on_batch(self, put_batch: Callable[[StoredMessage, int], object]) -> None:
        """Set a callback for records of topics with batch queues. It gets each record and its
        position (bytes)."""
        self.dispatcher.put_batch = put_batch

    def start(self) -> None:
        """Start the dispatch in the background."""
        if self._config.enable_lmq and self.dispatcher.light_queues_from is None:
            self.dispatcher.light_queues_from = self.offset
        self._appender.help_dispatch = self.run_pass
        self.dispatcher.counts_from = self.offset
        self._loop.start()

    def stop(self) -> None:
        """Dispatch as many of the remaining messages as possible, then stop the thread."""
        self._loop.stop()
        if self.held_up_by is not None:
            self._appender.drop_rows()
        while self.run_pass():
            pass
        self._complete_index()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the dispatch to the queues and to the index. FAILED while an error
        blocks the dispatch, or after one has stopped it."""
        found = self._loop.health()
        error = self.error or self.held_up_by
        rows = replace(found, error=error, failures=found.failures if error else 0)
        if error is not None:
            rows = replace(rows, state=ServiceState.FAILED)
        elif found.state is ServiceState.FAILED:  # the index's, which the same thread serves
            rows = replace(rows, state=ServiceState.RUNNING)
        if not self._index.is_enabled():
            return [rows]
        index = replace(rows, name="index", failures=0, error=self._index.error)
        if index.error is not None:
            index = replace(index, state=ServiceState.FAILED, failures=max(found.failures, 1))
        return [rows, index]

    def _run_passes(self) -> None:
        # The first round after a pause begins immediately.
        early_s = self._round_ended_s + _GATHER_S - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        while not self._loop.is_stopping and self.run_pass():
            self._loop.report_progress()
        index_error = self._complete_index()
        self._round_ended_s = time.monotonic()
        error = self.held_up_by or (None if index_error is None else find_passing(index_error))
        if error is not None:
            raise error  # tried again soon

    def run_pass(self) -> bool:
        """Dispatch the waiting rows. Returns whether any rows were waiting."""
        with self._lock:
            if self.error is not None:
                return False
            try:
                found = self._dispatch_waiting()
            except BaseException as error:
                # The rows are no longer in memory: the log has them.
                self._appender.drop_rows()
                if not isinstance(error, Exception):
                    raise
                self._stop_for(error)
                return False
            if self.held_up_by is not None:
                _log.info("dispatch continues at %d", self.offset)
                self.held_up_by = None
                self.limit_puts()
            return found

    def _dispatch_waiting(self) -> bool:
        waiting = self._appender.take_rows()
        if waiting.is_cut:
            if self.offset < waiting.end_offset:
                self.scan(waiting.end_offset)
            self._appender.resume_rows(self.offset)
            return True
        before = self.offset
        if before < waiting.begin_offset:
            self.scan(waiting.begin_offset)
        rows = waiting.rows
        for start in range(0, len(rows), PASS_ROWS * ROW_FIELDS):
            self.dispatcher.dispatch(read_rows(rows[start : start + PASS_ROWS * ROW_FIELDS]))
        # Even without a row, an interrupted put may have begun the next file.
        self.offset = max(before, waiting.end_offset)
        # Scanned rows may be passed again, as at the start, because only an empty result arms the
        # wake event.
        return waiting.end_offset > waiting.begin_offset or self.offset > before

    def _stop_for(self, error: Exception) -> None:
        passing = find_passing(error)
        if passing is not None:
            if self.held_up_by is None:
                _log.warning("dispatch is held up at %d: %s", self.offset, passing)
            self.held_up_by = passing
            self.limit_puts()
            return
        _log.error("dispatch stops at %d", self.offset, exc_info=error)
        self.error = (
            error
            if isinstance(error, TieredStoreError)
            else TieredStoreError(f"dispatch stops at {self.offset}: {error!r}")
        )
        reason = f"further messages do not become visible: {self.error}"
        self._flags.set(RunningFlag.WRITE_LOGICS_QUEUE_ERROR, reason, lasting=True)

    def limit_puts(self) -> None:
        """Reject puts while more than `max_behind_bytes` of the log are not dispatched. Puts are
        accepted again when at most half as many bytes remain. Other threads call this too, because
        the dispatch thread may be blocked."""
        behind = self._log.max_offset - self.offset
        if behind > self.max_behind_bytes:
            held_up_by = self.held_up_by
            why = "does not keep up" if held_up_by is None else f"is held up: {held_up_by}"
            reason = (
                f"more than {self.max_behind_bytes} bytes of the commit log wait for the dispatch, "
                f"which {why}"
            )
            self._flags.set(RunningFlag.WRITE_LOGICS_QUEUE_ERROR, reason)
        elif behind <= self.max_behind_bytes // 2:
            self._flags.clear(RunningFlag.WRITE_LOGICS_QUEUE_ERROR)

    def _complete_index(self) -> Exception | None:
        """Add missing entries to the index. Returns the error if some are still missing."""
        index = self._index
        if index.behind_from is None:
            return None
        with self._lock:
            begin = index.behind_from
            if begin is None or index.is_broken or not index.takes_entries(self.offset):
                return index.error
            try:
                for columns, end in self._log_rows.read(begin, self.offset):
                    self.dispatcher.index(columns)
                    index.behind_from = end
            except Exception as error:
                index.fall_behind(index.behind_from, error)
            else:
                index.catch_up()
            return index.error

    def dispatch_to(self, end: int) -> None:
        """Dispatch until gets and queries find all messages before the log offset `end`. The
        calling thread helps. Raises the error that stops or blocks the dispatch."""
        while self.offset < end:
            self.run_pass()
            self._raise_error()
        if self.built_offset < end:
            error = self._complete_index()
            if error is not None:
                raise error

    def _raise_error(self) -> None:
        error = self.error or self.held_up_by
        if error is not None:
            raise error

    def scan(self, end: int) -> None:
        """Dispatch the records of the log from `offset` to `end`. Raises Corrupt, and the errors of
        the queues."""
        begin = max(self.offset, self._log.min_offset)
        for columns, columns_end in self._log_rows.read(begin, end):
            self.dispatcher.dispatch(columns, is_scanning=True)
            self.offset = columns_end
        self.offset = end
