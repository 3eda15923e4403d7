"""Deletes the oldest files of commit log, consume queues and index.

One loop does the work of Java's CleanCommitLogService and CleanConsumeQueueService, in this order.
A reader that finds a unit therefore finds its message, or an error that the message is deleted. If
a crash interrupts a cleaning, the next one continues. `docs/local-store.md` has the rules.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from tieredstore.clock import Clock, RetentionClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.file_operations import measure_used_ratio
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.running_flags import RunningFlag, RunningFlags
from tieredstore.local.store_reads import record_time
from tieredstore.message.names import is_system_topic
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread

Measure = Callable[[Path], float]
"""Function that returns the used share of a folder's file system: 0.0 to 1.0."""


class DiskPressure(enum.IntEnum):
    """Action required by the disk usage."""

    NONE = 0
    EXPIRED = 1
    """Above diskMaxUsedSpaceRatio: delete expired files at any hour."""
    FORCED = 2
    """Above diskSpaceCleanForciblyRatio: delete the oldest files before they expire."""
    FULL = 3
    """Above diskSpaceWarningLevelRatio: refuse puts."""


@dataclass(frozen=True, slots=True)
class _Levels:
    expired: float
    forced: float
    full: float

    @classmethod
    def from_config(cls, config: StoreConfig) -> _Levels:
        return cls(
            _clamp(config.disk_max_used_space_ratio, 10, 95),
            _clamp(config.disk_space_clean_forcibly_ratio, 30, 85),
            _clamp(config.disk_space_warning_level_ratio, 35, 90),
        )

    def pressure(self, ratio: float) -> DiskPressure:
        if ratio > self.full:
            return DiskPressure.FULL
        if ratio > self.forced:
            return DiskPressure.FORCED
        return DiskPressure.EXPIRED if ratio > self.expired else DiskPressure.NONE


class DiskWatch:
    """Watches a store's disks, and updates DISK_FULL and LOGIC_DISK_FULL. `log_folder`,
    `queue_folder`: folders of the commit log and of the consume queues. As in Java, the second is
    checked only if the first has room, so a full disk raises only one flag."""

    def __init__(
        self,
        config: StoreConfig,
        log_folder: Path,
        queue_folder: Path,
        flags: RunningFlags,
        measure: Measure = measure_used_ratio,
    ) -> None:
        self._config = config
        self._folders = (
            (log_folder, RunningFlag.DISK_FULL),
            (queue_folder, RunningFlag.LOGIC_DISK_FULL),
        )
        self._flags = flags
        self._measure = measure
        self.ratios: dict[Path, float] = {}

    def check(self) -> DiskPressure:
        """Measure the disk usage, and set or clear the flags. Returns the greatest pressure. Raises
        Unavailable."""
        found, levels = DiskPressure.NONE, _Levels.from_config(self._config)
        for folder, flag in self._folders:
            ratio = self.ratios[folder] = self._measure(folder)
            pressure = levels.pressure(ratio)
            if pressure is DiskPressure.FULL:
                self._flags.set(
                    flag,
                    f"{folder}: the disk is used to more than {levels.full:.0%} "
                    "(diskSpaceWarningLevelRatio)",
                )
            elif pressure < DiskPressure.FORCED:
                self._flags.clear(flag)
            found = max(found, pressure)
            if found >= DiskPressure.FORCED:
                break
        return found


def _clamp(percent: int, minimum: int, maximum: int) -> float:
    return max(minimum, min(percent, maximum)) / 100


FIRST_DELAY_MS: Final = 60_000
MANUAL_ROUNDS: Final = 20
CLEANED_METRIC: Final = "rocketmq_tiered_store_x_cleaned_files_total"
LOST_METRIC: Final = "rocketmq_tiered_store_x_cleaned_before_upload_bytes_total"
HELD_METRIC: Final = "rocketmq_tiered_store_x_cleaning_held_bytes"
_HOUR_MS: Final = 3_600_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CleaningOutcome:
    """Result of one cleaning: number of deleted files of each kind. `lost_bytes`: bytes of the
    commit log that were deleted although the tier needed them. `held_bytes`: bytes that were kept
    because the tier needs them."""

    log_files: int = 0
    queue_files: int = 0
    index_files: int = 0
    lost_bytes: int = 0
    held_bytes: int = 0


class CleanService:
    """Cleans one store every `cleanResourceInterval`. The first cleaning is after one minute."""

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
        """Start the loop. `newest_ms`: store time of the newest message, or -1 without messages."""
        self._stopping.clear()
        self.retention_clock.begin(newest_ms)
        self._loop.start()

    def stop(self) -> None:
        """Stop after the current file. Idempotent."""
        self._stopping.set()
        self._loop.stop()

    def health(self) -> ServiceHealth:
        """Return the health of the loop. A failed cleaning is retried."""
        return self._loop.health()

    def execute_delete_files_manually(self) -> None:
        """Delete expired files in the next 20 cleanings, at any hour. The first cleaning begins
        now."""
        self._manual_rounds = MANUAL_ROUNDS
        self._loop.wake()

    def run_once(self) -> CleaningOutcome:
        """Clean the store now. Raises the error that stopped the cleaning. The next call continues
        it."""
        outcome = CleaningOutcome()
        try:
            self._clean_log(outcome)
        finally:
            self._clean_behind(outcome)
            self._count(outcome)
        return outcome

    def clean_expired_consume_queue(self, hold: Callable[[], AbstractContextManager[None]]) -> int:
        """Empty the queues whose messages have all expired, except those of system topics. Their
        offsets continue, even after a restart. `hold`: context manager that blocks the dispatch.
        Returns the number of emptied queues."""
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
        now_ms = self.retention_clock.now_ms()  # even without work: it keeps watching
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
        log, most = self._log, self._config.delete_file_batch_max
        if pressure >= DiskPressure.FORCED and self._config.clean_file_forcibly_enable:
            begin_of_last = (log.readable_offset - 1) // log.file_size * log.file_size
            end = min(_file_end(log, log.min_offset, most), begin_of_last)
        else:
            reserved_ms = self._config.local_file_reserved_time_hours * _HOUR_MS
            end = find_expired_end(log, now_ms, reserved_ms, most)
        # Messages that were not dispatched could not be found.
        dispatched = self._guards.dispatched()
        return min(end, dispatched - dispatched % log.file_size)

    def _keep_needed(self, end: int, pressure: DiskPressure, outcome: CleaningOutcome) -> int:
        """Return the offset, at most `end`, before which log files may be deleted. Files that the
        tier still needs may be deleted only if the disk is full."""
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
                "the disk is full: up to %d bytes of the commit log are deleted before their "
                "upload, so the tier loses them (first %s/%d from offset %d on)",
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
            # Another round may have deleted files up to `end` during the wait.
            paths = log.delete_files_before(min(_file_end(log, log.min_offset, 1), end))
            if not paths:
                return  # not flushed yet
            outcome.log_files += len(paths)
            self._loop.report_progress()
            for path in paths:
                _log.info("%s: deleted", path)

    # Queues and index

    def _clean_behind(self, outcome: CleaningOutcome) -> None:
        """Delete the queue units and index files of deleted messages."""
        minimum = self._log.min_offset
        if minimum <= self._cleaned_to:
            return
        outcome.queue_files = self._queues.delete_expired(minimum)
        outcome.queue_files += self._batch_queues.delete_expired(minimum)
        outcome.index_files = self._index.delete_expired(minimum)
        self._cleaned_to = minimum

    def _count(self, outcome: CleaningOutcome) -> None:
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
    """Return the end of `count` consecutive files, starting with the one that contains `offset`."""
    return offset - offset % log.file_size + count * log.file_size


def parse_delete_when(text: str) -> frozenset[int]:
    """Parse `deleteWhen`: hours separated by semicolons. As in Java, an invalid hour never
    matches."""
    words = (word.strip() for word in text.split(";"))
    return frozenset(int(word) for word in words if re.fullmatch("[0-9]{1,9}", word))


class CleanableLog(CommitLogReader, Protocol):
    """Commit log whose old files may be deleted."""

    def delete_files_before(self, offset: int) -> list[Path]:
        """Delete the files that end at or before `offset`, oldest first, and return their paths.
        The last file and unflushed files are kept."""


def find_expired_end(log: CommitLogReader, now_ms: int, reserved_ms: int, max_files: int) -> int:
    """Return the end (bytes) of the leading files whose newest message was stored more than
    `reserved_ms` ago, at most `max_files` files. The first message of the next file dates the
    newest message of a file. If that time is later than `now_ms`, and therefore wrong, the first
    later file with a credible time is used. If times decreased, the later of a file's first and
    last time is used."""
    size, end = log.file_size, log.min_offset
    limit_ms = now_ms - reserved_ms

    def first_time(begin: int) -> int:
        time = record_time(log, begin)
        return time if time <= now_ms else -1

    for _ in range(max_files):
        following = end - end % size + size
        ages = [first_time(end)]
        while following < log.readable_offset and len(ages) == 1:
            time = first_time(following)
            if time >= 0:
                ages.append(time)
            following += size
        if len(ages) == 1 or max(ages) >= limit_ms:
            break
        end += size - end % size
    return end


@dataclass(frozen=True, slots=True)
class NeededFrom:
    """First byte of the commit log that the tier still needs, and the queue that needs it."""

    physical_offset: int
    key: QueueKey
    queue_offset: int


@dataclass(eq=False)
class RetentionGuards:
    """Protect messages from deletion until they are dispatched and in the tier. `dispatched`:
    returns the end of the dispatched log (bytes)."""

    _source: LocalDispatchSource
    _queues: ConsumeQueueStoreInterface
    dispatched: Callable[[], int]

    def find_needed(self, before: int) -> NeededFrom | None:
        """Return the first byte below the offset `before` that the tier still needs, or None."""
        found: NeededFrom | None = None
        for key in self._source.queues():
            offset = self._source.find_needed_offset(key)
            if offset is None:
                continue
            queue = self._queues.get(key)
            if queue is None or offset >= queue.max_offset:
                continue
            offset = max(offset, queue.min_offset)
            unit = queue.unit(offset)
            if unit is not None and unit[0] < (before if found is None else found.physical_offset):
                found = NeededFrom(unit[0], key, offset)
        return found
