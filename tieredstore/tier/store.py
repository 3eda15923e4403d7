"""Message store whose history is in a tier."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StoreConfig
from tieredstore.contracts.dispatch_source import HistorySource, LiteSource, QueueKey, QueueRange
from tieredstore.contracts.message_store import (
    MeasuredStore,
    MessageStore,
    TierStatus,
)
from tieredstore.contracts.metadata_store import MetadataStore, TopicMetadata
from tieredstore.contracts.segment import SegmentId, SegmentListing, SegmentProvider
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.forks import expect_forks
from tieredstore.metrics import Metrics
from tieredstore.service_thread import MonitoredServices, ServiceHealth
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.history import StartComparison, forget_deleted, keep_history
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.lite.queues import LightQueues
from tieredstore.tier.lite.reading import READ_THREADS as LITE_THREADS
from tieredstore.tier.lite.reading import LiteReader
from tieredstore.tier.lite.service import LiteService, is_light
from tieredstore.tier.policy.limits import LimitedProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.provider_metrics import MeasuredProvider
from tieredstore.tier.reads import TieredReads
from tieredstore.tier.status import TierGauges, describe_tier
from tieredstore.tier.trace.service import TraceService
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.writing import RightWatch, TierWriter, begin_stop

READ_THREADS = 8
"""Number of threads in which the reads of coroutines wait for the backend."""

AHEAD_THREADS = 8
"""Number of threads that only read ahead for sequential readers, so that no other read waits for a
free thread."""

_DEFAULT_RETENTION_HOURS = StoreConfig().file_reserved_time_hours
_log = logging.getLogger(__name__)


class TieredMessageStore(TieredReads):
    """Store that puts messages into the next store and uploads them from there to the tier. Reads
    come from both. `tieredStorageLevel` decides which gets go to the tier. DISABLE switches the
    tier off, including uploads: it is not opened, and the next store answers all reads. A SLAVE
    reads the tier but never writes it.

    `provider`, `metadata`: owned by this store and closed by `shutdown`.
    `state_dir`: the broker's `storePathRootDir`, for local index files.
    `retention_is_explicit`: whether `tieredStoreFileReservedTime` was set (default: whether its
    value differs from Java's). If not, nothing expires because of this setting.
    """

    def __init__(
        self,
        next_store: MessageStore,
        config: StoreConfig,
        provider: SegmentProvider,
        metadata: MetadataStore,
        state_dir: str | Path,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics | None = None,
        *,
        retention_is_explicit: bool | None = None,
        is_named: bool = True,
    ) -> None:
        metrics = metrics if metrics is not None else Metrics()
        metered = find_layer(provider, MeteredProvider)
        if metered is not None:
            metered.bind_metrics(metrics)
        self._state = Path(state_dir)
        self._is_named = is_named
        if retention_is_explicit is None:
            retention_is_explicit = config.file_reserved_time_hours != _DEFAULT_RETENTION_HOURS
        flat_files = FlatFileStore(config, provider, metadata, clock)
        self.expiry = TierExpiry(
            config,
            flat_files,
            clock,
            metrics,
            reserve_hours=self._topic_reserve_hours,
            retention_is_explicit=retention_is_explicit,
        )
        self.index = IndexStoreService(
            config,
            provider,
            metadata,
            self._state,
            clock,
            metrics=metrics,
            retention_hours=self.expiry.longest_retention_hours,
            retention_clock=self.expiry.retention_clock,
            check_writer=flat_files.check_writer,
            confirm_writer=flat_files.confirm_writer,
        )
        self.backup = TierBackup(config, provider, self._state, clock, metadata.flush)
        self.trace = TraceService(config, self._state, clock, metrics)
        self._threads = ThreadPoolExecutor(READ_THREADS, "tiered-fetch")
        self._ahead_threads = ThreadPoolExecutor(AHEAD_THREADS, "tiered-ahead")
        self._lite_threads = ThreadPoolExecutor(LITE_THREADS, "tiered-lite-fetch")
        topic_filter = TopicFilter(config, metrics)
        fetcher = MessageStoreFetcher(
            config,
            flat_files,
            self.index,
            metadata,
            topic_filter,
            clock,
            metrics,
            self._threads,
            self._ahead_threads,
        )
        self.lite = LiteService(
            *(config, flat_files, clock, metrics),
            self._find_lite_topics,
            self._find_local_ranges,
            self._forget_light_deletions,
        )
        self._lite_reader = LiteReader(self.lite, flat_files, fetcher.cache, self._lite_threads)
        super().__init__(
            next_store,
            config,
            flat_files,
            fetcher,
            topic_filter,
            metrics,
            self.trace.recorder,
            LightQueues(
                *(next_store, self.lite, self._lite_reader, topic_filter, metrics),
                self._threads,
                fetcher.unreadable,
            ),
            self._threads,
        )
        self._provider = provider
        self._metadata = metadata
        self._is_writer = self._is_enabled and config.broker_role != "SLAVE"
        self._dispatcher: MessageStoreDispatcher | None = None
        self._gauges = TierGauges(flat_files, fetcher, clock, metrics)
        self._clock = clock
        self._closing = ExitStack()
        self._watch = RightWatch(lambda: self._history, clock)
        self.gives_offsets = True
        """Whether the store accepts messages after its start. A job that only loads the store sets
        this to False."""

    @classmethod
    def from_config(
        cls, next_store: MessageStore, loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Create the store from a broker's configuration."""
        config = loaded.config
        metrics = Metrics()
        return cls(
            next_store,
            config,
            LimitedProvider(
                MeasuredProvider(registry.segment_provider(config), metrics), config, clock, metrics
            ),
            registry.metadata_store(config, clock, read_only=config.broker_role == "SLAVE"),
            config.store_path_root_dir,
            clock,
            metrics,
            retention_is_explicit="tieredStoreFileReservedTime" in loaded.explicit_settings,
            is_named="brokerName" in loaded.explicit_settings,
        )

    @property
    def dispatcher(self) -> MessageStoreDispatcher:
        """The dispatcher. Created on first use, because the next store has a source only once it is
        loaded."""
        if self._dispatcher is None:
            self._dispatcher = MessageStoreDispatcher(
                self._config,
                self._source,
                self.flat_files,
                self.index,
                self.topic_filter,
                self._clock,
                self.metrics,
                self.lite.note,
            )
        return self._dispatcher

    def _find_lite_topics(self) -> Collection[str]:
        source = self._source
        return source.find_lite_topics() if isinstance(source, LiteSource) else ()

    def _find_local_ranges(self, topic: str) -> dict[int, QueueRange]:
        local = self.next_store
        return {
            key.queue_id: QueueRange(
                local.get_min_offset_in_queue(*key), local.get_max_offset_in_queue(*key)
            )
            for key in self._source.queues()
            if key.topic == topic
        }

    def _forget_light_deletions(self, queues: Collection[str]) -> None:
        if (source := self._history) is not None:
            source.forget_deletions(queues)

    def _topic_reserve_hours(self) -> dict[str, int]:
        return self._source.topic_reserve_hours()

    def _take_levels(self) -> None:
        self.topic_filter.take_levels(self._source.topic_storage_levels())

    # Life

    @cached_property
    def _comparison(self) -> StartComparison:
        return StartComparison(
            *(self._config, self.flat_files, self._state, self._history, self._clock),
            gives_offsets=self.gives_offsets,
            is_named=self._is_named,
            lite=self.lite,
        )

    def load(self) -> None:
        """Open the tier and the next store. Raises Fenced while another writer of this tier is
        active, and the errors of the parts. After an error, the parts that were opened are
        closed."""
        with ExitStack() as opened:
            opened.callback(self._provider.close)
            opened.callback(self._metadata.close)
            # The next store comes first: it decides whether the state directory is a store's.
            self.next_store.load()
            opened.callback(self.next_store.shutdown)
            if self._is_enabled:
                self._load_tier(opened)
            elif (source := self._history) is not None:
                self._comparison.belonging.check_name()
                keep_history(source, self._metadata, self._config.broker_name, self._state)
            opened.callback(self._threads.shutdown)
            opened.callback(self._ahead_threads.shutdown, cancel_futures=True)
            opened.callback(self._lite_threads.shutdown, cancel_futures=True)
            self._closing = opened.pop_all()
        expect_forks(self)

    def _load_tier(self, opened: ExitStack) -> None:
        if self._is_writer:
            writer = TierWriter.acquire(
                *(self._provider, self._metadata, self._config.broker_name, self._state),
                belonging=self._comparison.belonging,
            )
            opened.enter_context(writer)
            self._watch.watch(writer)
            self.backup.become_writer(writer)
            opened.callback(self.backup.finish)
            self.flat_files.renew_restore_point = self.backup.renew_metadata
            source = self._history
            self._comparison.compare_segments()
            self.flat_files.become_writer(writer)
            if source is not None:
                forget_deleted(source, self.flat_files, is_loaded=False)
        else:
            self._metadata.load()
        opened.callback(self.flat_files.close)
        self.flat_files.load()
        self.lite.load(writer if self._is_writer else None)
        opened.callback(self.lite.stop)
        if self._is_writer:
            if source is not None and source.is_empty:
                self.lite.catch_up()
            self._comparison.compare_queues(writer)
            if not self._provider.capabilities.durable:
                _log.warning(
                    "%s keeps nothing when this process ends: a tier for tests only; set "
                    "tieredBackendServiceProvider",
                    self._provider.url,
                )
        for topic, reason in self._source.find_excluded_topics().items():
            self.topic_filter.exclude(topic, reason)
        self._take_levels()
        self.index.recover(is_writer=self._is_writer)
        opened.callback(lambda: self.index.stop(force=self._is_writer))

    @property
    def _history(self) -> HistorySource | None:
        source = self._source
        return source if isinstance(source, HistorySource) else None

    def start(self) -> None:
        """Start the services that read, upload and expire messages. Raises Fenced, Unavailable."""
        if self._is_writer:
            # Before the next store begins to clean.
            self._source.set_retention_guard(self.dispatcher.retention_guard)
        self.next_store.start()
        if self._is_writer:
            self.flat_files.on_destroyed = self._forget
            if (source := self._history) is not None:
                # Records that were not dispatched before a crash.
                self._forget_deleted(source)
            self._comparison.finish()
        self._closing.callback(self.trace.stop)
        self.trace.start(self._source)
        if self._is_writer:
            self.index.start()
            self.lite.start()
            self._closing.callback(self.dispatcher.finish)
            self.dispatcher.start()
            self._closing.callback(self.expiry.stop)
            self.expiry.start()
            self._closing.callback(self.backup.stop)
            self.backup.start()
            self._closing.callback(self._watch.stop)
            self._watch.start()

    def shutdown(self) -> None:
        """Stop expiry and uploads, then the index (which uploads its files), then close the tier
        and the next store. All steps are tried, and the last error is raised. Idempotent. Messages
        that only wait for a larger write are uploaded (`dispatcher.finish`), within the provider's
        shutdown deadline. All other messages stay in the next store until the next start."""
        begin_stop(self._provider)
        closing, self._closing = self._closing, ExitStack()
        closing.close()

    def leave_to_parent(self) -> None:
        """Abandon the store in a forked child without closing anything, because the tier and its
        writer epoch belong to the parent."""
        self._closing.pop_all()

    def health(self) -> list[ServiceHealth]:
        """Return the health of all background loops: index, lite topics, upload, expiry, backup,
        trace, fence checks, the next store and the provider."""
        own = (
            *(self.index, self.lite, self._dispatcher),
            *(self.expiry, self.backup, self.trace, self._watch),
        )
        health = [found for service in own if service is not None for found in service.health()]
        provider = find_layer(self._provider, MonitoredServices)
        return [*health, *super().health(), *(provider.health() if provider is not None else ())]

    def describe_tier(self) -> TierStatus | None:
        """Return the status of the tier for `/health`, or None while it is disabled. May read the
        disk."""
        if not self._is_enabled:
            return None
        return describe_tier(
            self.flat_files,
            self.next_store,
            self.topic_filter,
            self._clock,
            self.dispatcher if self._is_writer else None,
            self.fetcher.unreadable,
        )

    def list_tier_queues(self) -> list[QueueKey]:
        """Return the queues in the tier. Empty while the tier is disabled."""
        return [QueueKey(file.topic, file.queue_id) for file in self.flat_files.files()]

    def reload(
        self,
        queues: Iterable[QueueKey],
        listings: Mapping[SegmentId, SegmentListing],
        *,
        reload_index: bool,
    ) -> None:
        """Read the current metadata from disk, and reopen `queues` from `listings`. A SLAVE needs
        this when another process has written to the tier. `reload_index`: whether to reopen the
        index too. Raises Unavailable, Corrupt."""
        self._metadata.load()
        self._take_levels()
        for key in self.flat_files.reload(queues, listings):
            self.fetcher.cache.drop(key)
        if reload_index:
            self.index.reload()

    # Topics

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics from both stores. The next store comes first, so that nothing is uploaded
        again. A slave deletes only its own data, because the tier belongs to its writer."""
        light = {
            topic: self.get_max_offset_in_queue(topic, 0) for topic in self._list_light(topics)
        }
        count = self.next_store.delete_topics(topics)
        if not self._is_writer:
            return count
        self._delete_light(light)
        return max(count, len(self.flat_files.destroy_topics(topics)))

    def _list_light(self, topics: Collection[str]) -> list[str]:
        return [topic for topic in topics if self.lite.is_enabled and is_light(topic)]

    def _delete_light(self, ends: Mapping[str, int]) -> None:
        self.lite.delete(ends)
        for queue in ends:
            self._lite_reader.drop(queue)

    def _forget_deleted(self, source: HistorySource) -> None:
        """Finish topic deletions whose records were not dispatched before a crash. The local store
        keeps the deletions of light queues until a run has recorded them."""
        deleted = source.find_deleted_queues()
        light = self._list_light({key.topic for key in deleted})
        self._delete_light({queue: deleted[QueueKey(queue, 0)].offset for queue in light})
        forget_deleted(source, self.flat_files, is_loaded=True, kept=light)

    def _forget(
        self, topics: Collection[str], found: Iterable[tuple[TopicMetadata, list[int]]]
    ) -> None:
        for topic, queue_ids in found:
            for queue_id in queue_ids:
                self.fetcher.cache.drop(QueueKey(topic.topic, queue_id))
                self.index.forget(topic.topic_id, queue_id)
        if (source := self._history) is not None:
            source.forget_deletions([*({*topics} - {*self._list_light(topics)})])
        self.dispatcher.forget_topics(topics)
        self.metrics.forget(lambda label: label in topics or _find_topic(label) in topics)

    # Metrics

    def collect_metrics(self) -> None:
        """Update the gauges. An exporter calls this before it reads `metrics`."""
        if isinstance(self.next_store, MeasuredStore):
            self.next_store.report_metrics(self.metrics)
        if self._is_enabled:
            if self.topic_filter.has_policies:
                self.topic_filter.report_policies(key.topic for key in self._source.queues())
            self._gauges.collect()


def _find_topic(path: str) -> str:
    """Return the topic in a queue's path, which is a label of the metrics of segments, reads and
    writes."""
    return path.partition("/")[2].rpartition("/")[0]
