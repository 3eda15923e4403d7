"""Dispatch: from what was appended to the log to consume queues and index ("reput").

Live, the rows come from the put path in memory. Where rows are missing (at the start, or when they
were dropped because too many waited) the log itself is read.
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
from tieredstore.local.dispatch.builders import RowDispatcher
from tieredstore.local.dispatch.index_builder import IndexBuilder
from tieredstore.local.dispatch.log_rows import PASS_ROWS, LogRows
from tieredstore.local.dispatch.row_columns import read_rows
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import ROW_FIELDS
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.queues.kinds import fills_light_queues
from tieredstore.local.running_flags import RunningFlag, RunningFlags, find_passing
from tieredstore.message.record import StoredMessage
from tieredstore.service_thread import ServiceHealth, ServiceState, ServiceThread

MAX_BEHIND_BYTES: Final = 4 << 30
"""How far puts may run ahead of a dispatch that is held up."""
_GATHER_S: Final = 0.002
"""From the end of a round of the thread to the next one: a pass for one row costs nearly what a
pass for a hundred costs."""
_RETRY_MS: Final = 50
_MAX_RETRY_MS: Final = 1_000
_log = logging.getLogger(__name__)


class Reput:
    """Builds consume queues and index in the order of the log.

    Passes are run by a thread of its own and by producers that find too many rows waiting, one at a
    time. `offset` is the end of what was dispatched to the queues.

    After a passing error (`held_up_by`) the thread tries again from `offset`. Puts go on until
    `max_behind_bytes` wait in the log, whatever the reason. After a lasting error nothing more is
    dispatched, `error` says why, and WRITE_LOGICS_QUEUE_ERROR is raised: nobody could find what
    would be put.

    What was put before the start goes in its light queues if `enableMultiDispatch` says so then.
    What is put later does wherever its put gave it an offset there: so no light queue has a hole,
    whenever the key is changed.
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
        self._log_rows = LogRows(log, appender, has_light_queues=config.enable_lmq)
        self._index = IndexBuilder(index, flags, lambda: config.message_index_enable)
        self.dispatcher = RowDispatcher(log, appender, queues, self._index, delays_ms)
        if fills_light_queues(config):
            self.dispatcher.light_queues_from = 0
        self._lock = threading.RLock()  # taken before the put lock
        self._round_ended_s = 0.0
        # It is woken by the put path, which sets the event itself.
        self._loop = ServiceThread(
            "reput",
            self._run_passes,
            None,
            retry_ms=_RETRY_MS,
            max_backoff_ms=_MAX_RETRY_MS,
            on_error=lambda _: None,  # said when it began
            wake_event=appender.wake,
        )

    @property
    def timestamp_ms(self) -> int:
        """Store time of the last message that was dispatched."""
        return self.dispatcher.timestamp_ms

    @timestamp_ms.setter
    def timestamp_ms(self, timestamp_ms: int) -> None:
        self.dispatcher.timestamp_ms = timestamp_ms

    @property
    def built_offset(self) -> int:
        """Where in the log (bytes) the dispatch has to go on after a restart: everything before is
        in queues and index."""
        behind = self._index.behind_from
        return self.offset if behind is None else min(self.offset, behind)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the dispatch: no unit is put meanwhile. Taken before the put lock."""
        with self._lock:
            yield

    def miss_index_from(self, offset: int) -> None:
        """Let the index be built from a byte of the log on, beside the dispatch."""
        self._index.behind_from = offset

    def on_batch(self, put_batch: Callable[[StoredMessage, int], object]) -> None:
        """Let records of topics with batch queues be told, with their place in the log (bytes)."""
        self.dispatcher.put_batch = put_batch

    def start(self) -> None:
        """Begin to dispatch in the background what is put from now on."""
        if self._config.enable_lmq and self.dispatcher.light_queues_from is None:
            self.dispatcher.light_queues_from = self.offset
        self._appender.help_dispatch = self.run_pass
        self.dispatcher.counts_from = self.offset
        self._loop.start()

    def stop(self) -> None:
        """Dispatch what is left, as far as that is possible now, and end the thread."""
        self._loop.stop()
        if self.held_up_by is not None:
            self._appender.drop_rows()
        while self.run_pass():
            pass
        self._complete_index()

    def health(self) -> list[ServiceHealth]:
        """Tell how the dispatch to the queues, and to the index, is: FAILED while an error holds it
        up, or has stopped it."""
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
        # The first round after a pause begins at once.
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
        """Dispatch what waits now; returns whether anything did."""
        with self._lock:
            if self.error is not None:
                return False
            try:
                found = self._dispatch_waiting()
            except BaseException as error:
                # Nobody has the rows in hand any more: the log has them.
                self._appender.drop_rows()
                if not isinstance(error, Exception):
                    raise
                self._stop_for(error)
                return False
            if self.held_up_by is not None:
                _log.info("dispatch goes on, at %d", self.offset)
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
        # Without a row too: an interrupted put may have begun the next file alone.
        self.offset = max(before, waiting.end_offset)
        # What was scanned before may come once more, as at a start: only an empty answer has armed
        # the wake.
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
        reason = f"no message becomes visible any more: {self.error}"
        self._flags.set(RunningFlag.WRITE_LOGICS_QUEUE_ERROR, reason, lasting=True)

    def limit_puts(self) -> None:
        """Refuse puts while more than `max_behind_bytes` wait for the dispatch, until half of that
        is done; called now and then, also by others, since it may stand still inside a call."""
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
        """Give entries to what the index has missed; returns why it misses some still."""
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
        """Return when gets and queries find everything before a byte of the log; the caller's
        thread helps. Raises what stops the dispatch, or holds it up now."""
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
        """Dispatch the records of the log from `offset` to `end`. Raises Corrupt, and what the
        queues raise."""
        begin = max(self.offset, self._log.min_offset)
        for columns, columns_end in self._log_rows.read(begin, end):
            self.dispatcher.dispatch(columns, is_scanning=True)
            self.offset = columns_end
        self.offset = end
