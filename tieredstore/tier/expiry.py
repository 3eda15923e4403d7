"""TierExpiry: the hourly job that deletes what is older than its topic's retention."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK, Clock, RetentionClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.errors import TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import HOUR_MS, FlatMessageFile

GO_ON_MS = 60_000
"""How soon a run goes on that deleted as much as one may."""
EXPIRED_METRIC = "rocketmq_tiered_store_x_expired_segments_total"
_NAMED_TOPICS = 20
"""How many a warning names."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExpiryOutcome:
    """segments: how many left their queues; undeleted: objects still in the backend, tried again
    at the next run; kept_bytes: topic -> bytes that would have gone, were the retention set
    explicitly; errors: path -> what went wrong."""

    segments: int = 0
    undeleted: int = 0
    kept_bytes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, TieredStoreError] = field(default_factory=dict)


class TierExpiry:
    """Retention is the topic's `reserve.time` when it is above 0, else
    `tieredStoreFileReservedTime`, in hours.

    retention_is_explicit: whether `tieredStoreFileReservedTime` was given a value. While it was
    not, topics without a `reserve.time` of their own keep everything, since Java's default of
    72 hours would delete an uploaded backlog at the first run; the outcome and the log name what
    would go. reserve_hours: the topics' `reserve.time` as the broker has them now.

    Ages go by `retention_clock`, so a wall clock that jumps ahead deletes nothing.
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
        """Whether somebody gave the retention, at the start or since."""
        return self._was_explicit or self._config.file_reserved_time_hours != self._first_hours

    def start(self) -> None:
        """Run every `tieredStoreDeleteFileInterval`, the first time after one interval; nothing
        while `tieredStoreDeleteFileEnable` is false."""
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
        """End the loop after the deletion in progress. Idempotent."""
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Tell how the background loop is."""
        return [self._loop.health()]

    def run_once(self) -> ExpiryOutcome:
        """Expire all queues now, but `tieredStoreDeleteFileBatchMax` segments at most. A queue's
        error is in the outcome and stops no other queue. Raises Fenced when the right to write is
        lost."""
        self._is_unfinished = False
        self._flat_files.check_writer()
        self._take_over_reserve_hours()
        outcome = ExpiryOutcome()
        kept: defaultdict[str, int] = defaultdict(int)
        now_ms = self.retention_clock.now_ms()
        most = self._config.tier_delete_file_batch_max
        for file in self._flat_files.files():
            if self._loop.is_stopping:
                break
            if outcome.segments >= most:
                break
            self._loop.report_progress()
            hours = self._find_own_hours(file.topic)
            before_ms = now_ms - HOUR_MS * (hours or self._config.file_reserved_time_hours)
            if hours is None and not self._is_explicit:
                kept[file.topic] += count_expired_bytes(file, before_ms)
                continue
            self._expire(file, before_ms, most - outcome.segments, outcome)
        self._is_unfinished = outcome.segments >= most
        if self._is_unfinished:
            _log.info("%d segments expired, the most of one run: it goes on in a minute", most)
        outcome.kept_bytes = {topic: size for topic, size in kept.items() if size}
        self._warn(outcome.kept_bytes)
        outcome.undeleted = self._flat_files.sweep_deleted(self._is_ending)
        return outcome

    def _is_ending(self) -> bool:
        """Whether to delete nothing more; asked before each deletion."""
        self._loop.report_progress()
        return self._loop.is_stopping

    def longest_retention_hours(self) -> int | None:
        """Find the longest retention of any topic, for the key index (D22); None when some topic
        keeps everything."""
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
        """Bring the topics' `reserve.time` into the metadata, where Java has it too."""
        if self._reserve_hours is None:
            return
        wanted = self._reserve_hours()
        metadata = self._flat_files.metadata
        with metadata.batch():
            for entry in metadata.topics():
                hours = wanted.get(entry.topic, -1)
                if hours != entry.reserve_time_hours:
                    # By its id: a topic may be deleted and made again while this looks.
                    metadata.set_reserve_time(entry, hours)

    def _expire(
        self, file: FlatMessageFile, before_ms: int, most: int, outcome: ExpiryOutcome
    ) -> None:
        try:
            gone = file.expire(before_ms, self._is_ending, most)
        except TieredStoreError as error:
            _log.error("expiry of %s: %s", file.path, error)
            outcome.errors[file.path] = error
            return
        if gone:
            outcome.segments += len(gone)
            self._metrics.count(EXPIRED_METRIC, len(gone), topic=file.topic)
            _log.info("%s: %d segments expired", file.path, len(gone))

    def _warn(self, kept: Mapping[str, int]) -> None:
        topics = frozenset(kept)
        if topics and topics != self._warned:
            _log.warning(
                "tieredStoreFileReservedTime is not set, so nothing expires by it; at its default "
                "of %d hours %d bytes of these topics would be deleted: %s%s",
                self._config.file_reserved_time_hours,
                sum(kept.values()),
                ", ".join(sorted(topics)[:_NAMED_TOPICS]),
                "" if len(topics) <= _NAMED_TOPICS else f" and {len(topics) - _NAMED_TOPICS} more",
            )
        self._warned = topics


def count_expired_bytes(file: FlatMessageFile, before_ms: int) -> int:
    """Count the bytes of a queue that an expiry before that time would delete."""
    return sum(
        segment.commit_position
        for flat in (file.commit_log, file.consume_queue)
        for segment in flat.segments
        if segment.commit_position and segment.end_ms < before_ms
    )
