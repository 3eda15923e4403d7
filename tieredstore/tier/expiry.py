"""The hourly job that deletes messages older than the retention of their topic."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK, Clock, RetentionClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.flat.queue_writer import HOUR_MS

GO_ON_MS = 60_000
"""Delay (ms) of the next run after a run that deleted MAX_SEGMENTS."""
MAX_SEGMENTS = 1_000
"""Maximum number of segments that one run deletes. After a run that deleted so many segments, the
next run begins GO_ON_MS later."""
EXPIRED_METRIC = "rocketmq_tiered_store_x_expired_segments_total"
_NAMED_TOPICS = 20
"""Maximum number of topics that a warning names."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExpiryOutcome:
    """Result of one run.

    `segments`: number of segments removed from queues.
    `undeleted`: number of objects that could not be deleted. The next run tries again.
    `kept_bytes`: for each topic, the bytes kept only because no retention was set.
    `errors`: error by queue path.
    """

    segments: int = 0
    undeleted: int = 0
    kept_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, TieredStoreError] = field(default_factory=dict)


class TierExpiry:
    """Deletes messages when their retention ends. The retention is the topic's `reserve.time`
    (hours) if it is above 0, otherwise `tieredStoreFileReservedTime`. If neither is set, a topic
    keeps everything, because Java's default of 72 hours would delete an uploaded backlog in the
    first run. The outcome and the log name these topics.

    `retention_is_explicit`: whether `tieredStoreFileReservedTime` is set.
    `reserve_hours`: callable that returns the current `reserve.time` of the topics.
    `retention_clock`: determines ages, so that a wall clock that jumps ahead deletes nothing.
    """

    def __init__(
        self,
        config: StoreConfig,
        flat_files: FlatFileStore,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
        *,
        reserve_hours: Callable[[], Mapping[str, int]] | None = None,
        retention_is_explicit: bool = True,
    ) -> None:
        self._config = config
        self._flat_files = flat_files
        self._clock = clock
        self.retention_clock = RetentionClock(clock)
        self.retention_clock.begin()
        self._metrics = metrics if metrics is not None else Metrics()
        self._reserve_hours = reserve_hours
        self._was_explicit = retention_is_explicit
        self._first_hours = config.file_reserved_time_hours
        self._loop = ServiceThread(
            "tiered-expiry",
            self._run_if_enabled,
            self._find_interval_ms,
            clock=clock,
            waits_first=True,
        )
        self._warned: frozenset[str] = frozenset()
        self._is_unfinished = False

    @property
    def _is_explicit(self) -> bool:
        """Whether the retention was set explicitly, at startup or later."""
        return self._was_explicit or self._config.file_reserved_time_hours != self._first_hours

    def start(self) -> None:
        """Start the loop that expires messages every `tieredStoreDeleteFileInterval`. The first run
        is after one interval. Nothing expires while `tieredStoreDeleteFileEnable` is false."""
        times = (entry.end_timestamp_ms for entry in self._flat_files.metadata.segments())
        self.retention_clock.begin(
            max((time for time in times if time < NEVER_WRITTEN_MS), default=-1)
        )
        self._loop.start()

    def _find_interval_ms(self) -> int:
        interval_ms = self._config.delete_file_interval_ms
        return min(interval_ms, GO_ON_MS) if self._is_unfinished else interval_ms

    def _run_if_enabled(self) -> None:
        if self._config.delete_file_enable:
            self.run_once()
        else:
            self._is_unfinished = False

    def stop(self) -> None:
        """Stop the loop after the deletion in progress. Idempotent."""
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop."""
        return [self._loop.health()]

    def run_once(self) -> ExpiryOutcome:
        """Expire messages in all queues now, up to MAX_SEGMENTS segments. The error of a failed
        queue is in the outcome and does not stop the other queues. Raises Fenced if the epoch was
        lost."""
        self._is_unfinished = False
        self._flat_files.check_writer()
        self._take_over_reserve_hours()
        outcome = ExpiryOutcome()
        kept: defaultdict[str, int] = defaultdict(int)
        now_ms = self.retention_clock.now_ms()
        taken: list[tuple[FlatMessageFile, list[FileSegment]]] = []
        for file in self._flat_files.files():
            if self._loop.is_stopping:
                break
            if outcome.segments >= MAX_SEGMENTS:
                break
            self._loop.report_progress()
            hours = self._find_own_hours(file.topic)
            before_ms = now_ms - HOUR_MS * (hours or self._config.file_reserved_time_hours)
            if hours is None and not self._is_explicit:
                kept[file.topic] += count_expired_bytes(file, before_ms)
                continue
            segments = self._take(file, before_ms, MAX_SEGMENTS - outcome.segments, outcome)
            if segments:
                taken.append((file, segments))
        self._delete(taken, outcome)
        self._is_unfinished = outcome.segments >= MAX_SEGMENTS
        if self._is_unfinished:
            _log.info("%d segments expired: the next run begins in a minute", MAX_SEGMENTS)
        outcome.kept_bytes = {topic: size for topic, size in kept.items() if size}
        self._warn(outcome.kept_bytes)
        outcome.undeleted = self._flat_files.sweep_deleted(self._is_ending)
        return outcome

    def _is_ending(self) -> bool:
        """Return whether deletions must stop. Checked before each deletion."""
        self._loop.report_progress()
        return self._loop.is_stopping

    def longest_retention_hours(self) -> int | None:
        """Return the longest retention of any topic, or None if some topic keeps everything. The
        key index uses this (`docs/differences.md`, D22)."""
        hours = [self._find_own_hours(entry.topic) for entry in self._flat_files.metadata.topics()]
        if not self._is_explicit and (None in hours or not hours):
            return None
        default = self._config.file_reserved_time_hours
        return max((default if own is None else own for own in hours), default=default)

    def _find_own_hours(self, topic: str) -> int | None:
        entry = self._flat_files.metadata.topic(topic)
        if entry is None or entry.reserve_time_hours <= 0:
            return None
        return entry.reserve_time_hours

    def _take_over_reserve_hours(self) -> None:
        """Copy the current `reserve.time` of the topics into the metadata, as Java does."""
        if self._reserve_hours is None:
            return
        wanted = self._reserve_hours()
        metadata = self._flat_files.metadata
        with metadata.batch():
            for entry in metadata.topics():
                hours = wanted.get(entry.topic, -1)
                if hours != entry.reserve_time_hours:
                    # Identified by its id, because the topic may be deleted and recreated in the
                    # meantime.
                    metadata.set_reserve_time(entry, hours)

    def _take(
        self, file: FlatMessageFile, before_ms: int, most: int, outcome: ExpiryOutcome
    ) -> list[FileSegment]:
        try:
            taken = file.take_expired(before_ms, most)
        except TieredStoreError as error:
            self._note_error(file, error, outcome)
            return []
        if taken:
            outcome.segments += len(taken)
            self._metrics.count(EXPIRED_METRIC, len(taken), topic=file.topic)
            _log.info("%s: %d segments expired", file.path, len(taken))
        return taken

    def _delete(
        self, taken: Sequence[tuple[FlatMessageFile, list[FileSegment]]], outcome: ExpiryOutcome
    ) -> None:
        """Delete segments that were removed from their queues. Segments that cannot be deleted stay
        marked in the metadata. Before a queue is emptied, its end is saved for a restore. If that
        fails, nothing is deleted."""
        is_emptied = any(file.is_emptied for file, _ in taken)
        if is_emptied and not self._flat_files.renew_restore_point():
            return
        for file, segments in taken:
            try:
                self._flat_files.remove(segments, self._is_ending)
            except TieredStoreError as error:
                self._note_error(file, error, outcome)

    def _note_error(
        self, file: FlatMessageFile, error: TieredStoreError, outcome: ExpiryOutcome
    ) -> None:
        _log.error("expiry of %s: %s", file.path, error)
        outcome.errors[file.path] = error

    def _warn(self, kept: Mapping[str, int]) -> None:
        topics = frozenset(kept)
        if topics and topics != self._warned:
            _log.warning(
                "tieredStoreFileReservedTime is not set, so nothing expires by it. At its default "
                "of %d hours %d bytes of these topics would be deleted: %s%s",
                self._config.file_reserved_time_hours,
                sum(kept.values()),
                ", ".join(sorted(topics)[:_NAMED_TOPICS]),
                "" if len(topics) <= _NAMED_TOPICS else f" and {len(topics) - _NAMED_TOPICS} more",
            )
        self._warned = topics


def count_expired_bytes(file: FlatMessageFile, before_ms: int) -> int:
    """Count the bytes of a queue that an expiry of messages before `before_ms` would delete."""
    return sum(
        segment.commit_position
        for flat in (file.commit_log, file.consume_queue)
        for segment in flat.segments
        if segment.commit_position and segment.end_ms < before_ms
    )
