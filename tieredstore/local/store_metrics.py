"""Statistics of a store as metrics (Java's StoreStatsService and DefaultStoreMetricsManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import PUT_TIMES_MS, StoreFigures
from tieredstore.local.dispatch.reput import Reput
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.statistics import KeptStatistics, TimeDistribution
from tieredstore.metrics import Histogram, Metrics

FLUSH_BEHIND_BYTES: Final = "rocketmq_storage_flush_behind_bytes"
DISPATCH_BEHIND_BYTES: Final = "rocketmq_storage_dispatch_behind_bytes"
STORAGE_SIZE: Final = "rocketmq_storage_size"
MESSAGE_RESERVE_TIME: Final = "rocketmq_storage_message_reserve_time"
MESSAGES_IN: Final = "rocketmq_messages_in_total"
BYTES_IN: Final = "rocketmq_throughput_in_total"
PUT_TIME: Final = "rocketmq_tiered_store_x_put_time_ms"
PUT_LOCK_TIME: Final = "rocketmq_tiered_store_x_put_lock_time_ms"
PUTS_REFUSED: Final = "rocketmq_tiered_store_x_puts_refused_total"
SLOW_PUTS: Final = "rocketmq_tiered_store_x_slow_puts_total"
INDEX_BEHIND_BYTES: Final = "rocketmq_tiered_store_x_index_behind_bytes"
DISPATCH_BEHIND_MS: Final = "rocketmq_tiered_store_x_dispatch_behind_ms"
MAPPED_FILES: Final = "rocketmq_tiered_store_x_mapped_files"
MAPPED_BYTES: Final = "rocketmq_tiered_store_x_mapped_bytes"
_LOCAL: Final = {"storage_type": "local", "storage_medium": "disk"}


class Behind(NamedTuple):
    """Lag of a store's services behind its puts."""

    flush_bytes: int
    dispatch_bytes: int
    index_bytes: int
    dispatch_ms: int


class StoreMetrics:
    """Counts of one store and the lag of its services, as metrics."""

    def __init__(
        self,
        log: CommitLog,
        appender: MessageAppender,
        reput: Reput,
        clock: Clock,
        find_age_ms: Callable[[], int | None],
    ) -> None:
        """Create the metrics of a store. `find_age_ms`: returns the age of the oldest message, or
        None."""
        self._now_ms = clock.now_ms
        self._since_ms = clock.now_ms()
        self._find_age_ms = find_age_ms
        self._log = log
        self._appender = appender
        self._reput = reput

    def measure_behind(self) -> Behind:
        """Measure how far the services are behind the puts."""
        end = self._log.max_offset
        dispatch_bytes = max(end - self._reput.offset, 0)
        late_ms = self._appender.last_timestamp_ms - self._reput.timestamp_ms
        return Behind(
            max(end - self._log.flushed_offset, 0),
            dispatch_bytes,
            max(end - self._reput.built_offset, 0),
            max(late_ms, 0) if dispatch_bytes else 0,
        )

    def measure(self) -> StoreFigures:
        """Return the current figures of the log and of the puts."""
        behind, puts = self.measure_behind(), self._appender.statistics
        return StoreFigures(
            min_offset=self._log.min_offset,
            max_offset=self._log.max_offset,
            flush_behind_bytes=behind.flush_bytes,
            dispatch_behind_bytes=behind.dispatch_bytes,
            put_times=tuple(puts.put_times.counts),
            put_max_ms=int(puts.put_times.max_ms),
            refused_puts=sum([*puts.refused.values()]),
        )

    def take_statistics(self) -> KeptStatistics:
        """Return the statistics to save in the store's folder."""
        puts, behind = self._appender.statistics, self.measure_behind()
        return KeptStatistics(
            written_ms=self._now_ms(),
            since_ms=self._since_ms,
            time_bounds_ms=PUT_TIMES_MS,
            put_times=puts.put_times,
            put_lock_times=puts.lock_times,
            puts_refused={status.name: count for status, count in [*puts.refused.items()]},
            slow_puts=puts.slow_puts,
            flush_behind_bytes=behind.flush_bytes,
            dispatch_behind_bytes=behind.dispatch_bytes,
            index_behind_bytes=behind.index_bytes,
            dispatch_behind_ms=behind.dispatch_ms,
        )

    def collect(self, metrics: Metrics) -> None:
        """Update all series. The series of deleted topics are dropped."""
        behind = self.measure_behind()
        metrics.gauge(FLUSH_BEHIND_BYTES, behind.flush_bytes, **_LOCAL)
        metrics.gauge(DISPATCH_BEHIND_BYTES, behind.dispatch_bytes, **_LOCAL)
        metrics.gauge(INDEX_BEHIND_BYTES, behind.index_bytes)
        metrics.gauge(DISPATCH_BEHIND_MS, behind.dispatch_ms)
        metrics.gauge(STORAGE_SIZE, self._log.max_offset - self._log.min_offset, **_LOCAL)
        age_ms = self._find_age_ms()
        if age_ms is not None:
            metrics.gauge(MESSAGE_RESERVE_TIME, age_ms, **_LOCAL)
        mapped = [file.size for file in self._log.mapped_files]
        metrics.gauge(MAPPED_FILES, len(mapped))
        metrics.gauge(MAPPED_BYTES, sum(mapped))
        puts = self._appender.statistics
        metrics.set_histogram(PUT_TIME, _make_histogram(puts.put_times))
        metrics.set_histogram(PUT_LOCK_TIME, _make_histogram(puts.lock_times))
        metrics.gauge(SLOW_PUTS, puts.slow_puts)
        for status, count in [*puts.refused.items()]:
            metrics.gauge(PUTS_REFUSED, count, status=status.name)
        counts = self._reput.dispatcher.counts.snapshot()
        for name, column in ((MESSAGES_IN, 0), (BYTES_IN, 1)):
            metrics.replace(name, "topic", {topic: both[column] for topic, both in counts.items()})


def _make_histogram(times: TimeDistribution) -> Histogram:
    return Histogram(PUT_TIMES_MS, list(times.counts), times.total_ms)
