"""TieredMessageStore: a message store whose history lives in a tier."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StoreConfig
from tieredstore.contracts.dispatch_source import HistorySource, QueueKey
from tieredstore.contracts.message_store import (
    MeasuredStore,
    MessageStore,
)
from tieredstore.contracts.tier_status import TierStatus
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.forks import tell_of_forks
from tieredstore.metrics import Metrics
from tieredstore.service_thread import MonitoredServices, ServiceHealth
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.gauges import TierGauges
from tieredstore.tier.history import (
    adopt_history,
    check_adoption,
    forget_deleted,
    keep_history,
)
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.policy.limits import LimitedProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.provider_metrics import MeasuredProvider
from tieredstore.tier.reads import TieredReads
from tieredstore.tier.status import describe_tier
from tieredstore.tier.trace.service import TraceService
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.writing import TierWriter, begin_stop

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentId, SegmentListing, SegmentProvider

READ_THREADS = 8
"""Threads in which the reads of coroutines wait for the backend."""

AHEAD_THREADS = 8
"""Threads that read ahead of sequential readers; others never wait behind them."""

_DEFAULT_RETENTION_HOURS = StoreConfig().file_reserved_time_hours
_log = logging.getLogger(__name__)


class TieredMessageStore(TieredReads):
    """Puts go to the next store, and from there to the tier; reads are answered by both.

    `tieredStorageLevel` says which gets the tier answers. DISABLE switches the tier off, uploads
    included: the next store answers alone and the tier is not opened. A SLAVE reads the tier and
    never writes it. Topics that stay out of the tier are always the next store's.

    provider and metadata belong to this store from now on: `shutdown` closes them. state_dir: the
    broker's `storePathRootDir` (local index files). retention_is_explicit: whether somebody gave
    `tieredStoreFileReservedTime` a value, without which nothing expires by it (default: whether it
    differs from Java's).
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
    ) -> None:
        metrics = metrics if metrics is not None else Metrics()
        metered = find_layer(provider, MeteredProvider)
        if metered is not None:
            metered.bind_metrics(metrics)
        self._state = Path(state_dir)
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
        super().__init__(
            next_store,
            config,
            flat_files,
            fetcher,
            topic_filter,
            metrics,
            self.trace.recorder,
            self._threads,
        )
        self._provider = provider
        self._metadata = metadata
        self._is_writer = self._is_enabled and config.broker_role != "SLAVE"
        self._dispatcher: MessageStoreDispatcher | None = None
        self._gauges = TierGauges(flat_files, fetcher.cache, clock, metrics)
        self._clock = clock
        self._closing = ExitStack()

    @classmethod
    def from_config(
        cls, next_store: MessageStore, loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Make the plugin as a broker's configuration describes it."""
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
        )

    @property
    def dispatcher(self) -> MessageStoreDispatcher:
        """What uploads. Made at the first use: the next store has a source once it is loaded."""
        if self._dispatcher is None:
            self._dispatcher = MessageStoreDispatcher(
                self._config,
                self._source,
                self.flat_files,
                self.index,
                self.topic_filter,
                self._clock,
                self.metrics,
            )
        return self._dispatcher

    def _topic_reserve_hours(self) -> dict[str, int]:
        return self._source.topic_reserve_hours()

    def _take_levels(self) -> None:
        self.topic_filter.take_levels(self._source.topic_storage_levels())

    # Life

    def load(self) -> None:
        """Open tier and next store. Raises Fenced when another writer of this tier lives, and what
        the parts raise; what was opened is closed again then."""
        with ExitStack() as opened:
            opened.callback(self._provider.close)
            opened.callback(self._metadata.close)
            # The next store comes first: it decides whether the state directory is a store's.
            self.next_store.load()
            opened.callback(self.next_store.shutdown)
            if self._is_enabled:
                self._load_tier(opened)
            elif (source := self._history) is not None:
                keep_history(source, self._metadata, self._config.broker_name, self._state)
            opened.callback(self._threads.shutdown)
            opened.callback(self._ahead_threads.shutdown, cancel_futures=True)
            self._closing = opened.pop_all()
        tell_of_forks(self)

    def _load_tier(self, opened: ExitStack) -> None:
        if self._is_writer:
            self._check_mounted()
            source = self._history
            if source is not None and source.is_new:
                self._metadata.load()  # taking the right to write would change who was the last
                check_adoption(source, self._config, self._provider, self._metadata)
            writer = TierWriter.acquire(
                self._provider, self._metadata, self._config.broker_name, self._state
            )
            opened.enter_context(writer)
            self.backup.become_writer(writer)
            opened.callback(self.backup.finish)
            if source is not None:
                check_adoption(source, self._config, self._provider, self._metadata)
                forget_deleted(source, self._metadata, self._config.broker_name)
            self.flat_files.become_writer(writer)
        else:
            self._metadata.load()
        opened.callback(self.flat_files.close)
        self.flat_files.load()
        if self._is_writer:
            self.flat_files.record_recovered()
            if source is not None:
                source.set_history(self.flat_files.find_end_offsets)
                adopt_history(source, self._config, self._metadata, self._clock.now_ms())
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

    def _check_mounted(self) -> None:
        """Raise Unavailable when a known tier is not there. A new tier's folders are made by its
        writer; a disk that is not mounted is not to be taken for a tier that lost everything."""
        if self._provider.capabilities.conditional:
            return
        self._metadata.load()
        first = next(iter(self._metadata.segments()), None)
        if first is not None:
            any(True for _ in self._provider.list(first.path))

    def start(self) -> None:
        """Begin to serve, upload and expire. Raises Fenced, Unavailable."""
        if self._is_writer:
            # Before the next store begins to clean.
            self._source.set_retention_guard(self.dispatcher.retention_guard)
        self.next_store.start()
        self._closing.callback(self.trace.stop)
        self.trace.start(self._source)
        if self._is_writer:
            self.index.start()
            self._closing.callback(self.dispatcher.finish)
            self.dispatcher.start()
            self._closing.callback(self.expiry.stop)
            self.expiry.start()
            self._closing.callback(self.backup.stop)
            self.backup.start()

    def shutdown(self) -> None:
        """Stop expiring and uploading, then the index (which uploads what it has), then close the
        tier and the next store. All is tried; the last error is raised. Idempotent.

        Messages that are not uploaded stay in the next store and are uploaded after the next
        start; those that only wait for a larger write are uploaded now (`dispatcher.finish`), as
        far as the time goes that the provider has for a stop.
        """
        begin_stop(self._provider)
        closing, self._closing = self._closing, ExitStack()
        closing.close()

    def leave_to_parent(self) -> None:
        """Close nothing in a forked child: the tier and its writer epoch are the parent's."""
        self._closing.pop_all()

    def health(self) -> list[ServiceHealth]:
        """Tell how each background loop is: those of the index, the upload, the expiry, the backup
        and the trace, then those of the next store and of the provider, where these say."""
        own = (self.index, self._dispatcher, self.expiry, self.backup, self.trace)
        health = [found for service in own if service is not None for found in service.health()]
        provider = find_layer(self._provider, MonitoredServices)
        return [*health, *super().health(), *(provider.health() if provider is not None else ())]

    def describe_tier(self) -> TierStatus | None:
        """Tell how the tier is, for `/health`; None while it is switched off. May read the disk."""
        if not self._is_enabled:
            return None
        return describe_tier(
            self.flat_files,
            self.next_store,
            self.topic_filter,
            self._clock,
            self.dispatcher if self._is_writer else None,
        )

    def list_tier_queues(self) -> list[QueueKey]:
        """List the queues that the tier has; none while it is switched off."""
        return [QueueKey(file.topic, file.queue_id) for file in self.flat_files.files()]

    def reload(
        self,
        queues: Iterable[QueueKey],
        listings: Mapping[SegmentId, SegmentListing],
        *,
        reload_index: bool,
    ) -> None:
        """Read from now on what the metadata, as it is on the disk, and a listing have of some
        queues, and with `reload_index` of the index. For a SLAVE over a tier that another process
        writes. Raises Unavailable, Corrupt."""
        self._metadata.load()
        self._take_levels()
        self.flat_files.reload(queues, listings)
        if reload_index:
            self.index.reload()

    # Topics

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics from both stores, the next one first, so that nothing is uploaded again.
        What a slave deletes is its own: the tier is its writer's."""
        count = self.next_store.delete_topics(topics)
        if not self._is_writer:
            return count
        found = self.flat_files.destroy_topics(topics)
        for topic, queue_ids in found:
            for queue_id in queue_ids:
                self.fetcher.cache.drop(QueueKey(topic.topic, queue_id))
                self.index.forget(topic.topic_id, queue_id)
        self.dispatcher.forget_topics(topics)
        self.metrics.forget(lambda label: label in topics or _find_topic(label) in topics)
        return max(count, len(found))

    # Metrics

    def collect_metrics(self) -> None:
        """Bring the gauges up to date; an exporter calls it before it reads `metrics`."""
        if isinstance(self.next_store, MeasuredStore):
            self.next_store.report_metrics(self.metrics)
        if self._is_enabled:
            if self.topic_filter.has_policies:
                self.topic_filter.report_policies(key.topic for key in self._source.queues())
            self._gauges.collect()


def _find_topic(path: str) -> str:
    """The topic in the path of a queue, with which sizes of segments, reads and writes are
    labelled."""
    return path.partition("/")[2].rpartition("/")[0]
