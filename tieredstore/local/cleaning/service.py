"""CleanService: deletes the oldest files of commit log, consume queues and index.

What Java does in CleanCommitLogService and CleanConsumeQueueService, in one loop and in this order:
a reader that finds a unit finds its message or learns that it is gone, and after a crash between
any two deletions the next one goes on. The rules are in `docs/local-store.md`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tieredstore.clock import Clock, RetentionClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.cleaning.disk_usage import DiskPressure, DiskWatch
from tieredstore.local.cleaning.retention import CleanableLog, RetentionGuards, find_expired_end
from tieredstore.local.index.service import IndexService
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.message.names import is_system_topic
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread

FIRST_DELAY_MS: Final = 60_000
MANUAL_ROUNDS: Final = 20
CLEANED_METRIC: Final = "rocketmq_tiered_store_x_cleaned_files_total"
LOST_METRIC: Final = "rocketmq_tiered_store_x_cleaned_before_upload_bytes_total"
HELD_METRIC: Final = "rocketmq_tiered_store_x_cleaning_held_bytes"
_HOUR_MS: Final = 3_600_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CleaningOutcome:
    """What a round did: files deleted of each kind; lost_bytes: of the commit log, deleted although
    the tier needed them; held_bytes: kept because the tier needs them."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0
    lost_bytes: int = 0
    held_bytes: int = 0


class CleanService:
    """Cleans one store every `cleanResourceInterval`, the first time after a minute."""

    def __init__(
        self,
        config: StoreConfig,
        log: CleanableLog,
        queues: ConsumeQueueStoreInterface,
        batch_queues: BatchConsumeQueueStore,
        index: IndexService,
        guards: RetentionGuards,
        disk: DiskWatch,
        clock: Clock,
        metrics: Metrics | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._batch_queues = batch_queues
        self._index = index
        self._guards = guards
        self._disk = disk
        self._clock = clock
        self._metrics = metrics if metrics is not None else Metrics()
        self.retention_clock = RetentionClock(clock)
        self._stopping = threading.Event()
        self._manual_rounds = 0
        self._cleaned_to = 0  # the log's minimum that queues and index know
        self._held_queue: QueueKey | None = None
        self._is_stuck = False
        self._loop = ServiceThread(
            "cleaning",
            self.run_once,
            config.clean_resource_interval_ms,
            first_delay_ms=FIRST_DELAY_MS,
        )

    def start(self, newest_ms: int) -> None:
        """Begin. newest_ms: store time of the newest message, -1 without one."""
        self._stopping.clear()
        self.retention_clock.begin(newest_ms)
        self._loop.start()

    def stop(self) -> None:
        """End after the file under way. Idempotent."""
        self._stopping.set()
        self._loop.stop()

    def health(self) -> ServiceHealth:
        """Tell how the loop is; a round that failed is tried again."""
        return self._loop.health()

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 rounds delete what has expired, whatever the hour; the first comes
        now."""
        self._manual_rounds = MANUAL_ROUNDS
        self._loop.wake()

    def run_once(self) -> CleaningOutcome:
        """Clean now. Raises what stopped it; the next round goes on."""
        outcome = CleaningOutcome()
        try:
            self._clean_log(outcome)
        finally:
            self._clean_behind(outcome)
            self._tell(outcome)
        return outcome

    def clean_expired_consume_queue(self, hold: Callable[[], AbstractContextManager[None]]) -> int:
        """Empty the queues whose messages have all expired, those of system topics not; returns how
        many. Their offsets go on, also after a restart. hold: holds the dispatch."""
        count = 0
        for key in list(self._queues.list_queues()):
            if is_system_topic(key.topic):
                continue
            with hold():
                queue = self._queues.get(key)
                if queue is not None and 0 < queue.max_physical_offset <= self._log.min_offset:
                    queue.initialize_with_offset(queue.max_offset)
                    count += 1
        return count

    # The commit log

    def _clean_log(self, outcome: CleaningOutcome) -> None:
        now_ms = self.retention_clock.now_ms()  # also when nothing is to be done: it looks on
        pressure = self._disk.check()
        is_manual = self._manual_rounds > 0
        if is_manual:
            self._manual_rounds -= 1
        if not (is_manual or pressure or self._is_time_to_delete()):
            return
        end = self._choose_end(now_ms, pressure)
        end = self._keep_needed(end, pressure, outcome)
        if end <= self._log.min_offset:
            if pressure >= DiskPressure.FORCED and not self._is_stuck:
                self._is_stuck = True
                _log.error("the disk is nearly full and no commit log file can be deleted")
            return
        self._is_stuck = False
        self._delete_to(end, outcome)

    def _is_time_to_delete(self) -> bool:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006 - Java: local zone
        return now.hour in parse_delete_when(self._config.delete_when)

    def _choose_end(self, now_ms: int, pressure: DiskPressure) -> int:
        """Up to where files may go, were nobody to need them."""
        log, most = self._log, self._config.delete_file_batch_max
        if pressure >= DiskPressure.FORCED and self._config.clean_file_forcibly_enable:
            begin_of_last = (log.readable_offset - 1) // log.file_size * log.file_size
            end = min(_file_end(log, log.min_offset, most), begin_of_last)
        else:
            reserved_ms = self._config.local_file_reserved_time_hours * _HOUR_MS
            end = find_expired_end(log, now_ms, reserved_ms, most)
        # What was not dispatched yet could be found by nobody.
        dispatched = self._guards.dispatched()
        return min(end, dispatched - dispatched % log.file_size)

    def _keep_needed(self, end: int, pressure: DiskPressure, outcome: CleaningOutcome) -> int:
        """Up to where files may go although the tier has not taken all."""
        if end <= self._log.min_offset:
            self._held_queue = None
            return end
        needed = self._guards.find_needed(end)
        if needed is None:
            self._held_queue = None
            return end
        kept_from = needed.physical_offset - needed.physical_offset % self._log.file_size
        if pressure is DiskPressure.FULL and self._config.clean_file_forcibly_enable:
            outcome.lost_bytes = end - needed.physical_offset
            _log.error(
                "the disk is full: up to %d bytes of the commit log are deleted that the tier has "
                "not taken (first %s/%d from offset %d on): they are lost to it",
                outcome.lost_bytes,
                *needed.key,
                needed.queue_offset,
            )
            return end
        outcome.held_bytes = end - max(kept_from, self._log.min_offset)
        if self._held_queue != needed.key:
            self._held_queue = needed.key
            _log.warning(
                "%d bytes of the commit log have expired and stay: the tier still needs %s/%d from "
                "offset %d on",
                outcome.held_bytes,
                *needed.key,
                needed.queue_offset,
            )
        return kept_from

    def _delete_to(self, end: int, outcome: CleaningOutcome) -> None:
        log = self._log
        while log.min_offset < end and not self._stopping.is_set():
            if outcome.log_files:
                self._stopping.wait(self._config.delete_commit_log_files_interval_ms / 1000)
            paths = log.delete_files_before(_file_end(log, log.min_offset, 1))
            if not paths:
                return  # not flushed yet
            outcome.log_files += len(paths)
            self._loop.report_progress()
            for path in paths:
                _log.info("%s: deleted", path)

    # Queues and index

    def _clean_behind(self, outcome: CleaningOutcome) -> None:
        """What leads to messages that are gone goes too."""
        minimum = self._log.min_offset
        if minimum <= self._cleaned_to:
            return
        outcome.queue_files = self._queues.delete_expired(minimum)
        outcome.queue_files += self._batch_queues.delete_expired(minimum)
        outcome.index_files = self._index.delete_expired(minimum)
        self._cleaned_to = minimum

    def _tell(self, outcome: CleaningOutcome) -> None:
        for kind, count in (
            ("commitlog", outcome.log_files),
            ("consumequeue", outcome.queue_files),
            ("index", outcome.index_files),
        ):
            if count:
                self._metrics.count(CLEANED_METRIC, count, kind=kind)
        if outcome.lost_bytes:
            self._metrics.count(LOST_METRIC, outcome.lost_bytes)
        self._metrics.gauge(HELD_METRIC, outcome.held_bytes)


def _file_end(log: CleanableLog, offset: int, count: int) -> int:
    """The end of the `count` files from the one that holds an offset on."""
    return offset - offset % log.file_size + count * log.file_size


def parse_delete_when(text: str) -> frozenset[int]:
    """Parse `deleteWhen`: hours of the day, separated by semicolons. What is no hour never comes,
    as in Java."""
    words = (word.strip() for word in text.split(";"))
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit())
