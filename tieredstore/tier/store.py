"""TieredMessageStore: a message store whose history lives in a tier."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    MessageFilter,
    MessageStore,
    PutMessageResult,
)
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.tier import routing
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.gauges import TierGauges
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.message.record import Message, StoredMessage

FALLBACKS = "rocketmq_tiered_store_get_message_fallback_total"
MESSAGES_OUT = "rocketmq_tiered_store_messages_out_total"
READ_THREADS = 8
"""Threads in which the reads of coroutines wait for the backend."""

_DEFAULT_RETENTION_HOURS = StoreConfig().file_reserved_time_hours
_FALLBACK_STATUSES = (
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
)
_log = logging.getLogger(__name__)


class TieredMessageStore:
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
        self.metrics = metrics if metrics is not None else Metrics()
        metered = find_layer(provider, MeteredProvider)
        if metered is not None:
            metered.bind_metrics(self.metrics)
        self._next = next_store
        self._config = config
        self._provider = provider
        self._metadata = metadata
        self._is_enabled = config.storage_level is not StorageLevel.DISABLE
        self._is_writer = self._is_enabled and config.broker_role != "SLAVE"
        self._is_force = config.storage_level is StorageLevel.FORCE
        self._threads = ThreadPoolExecutor(READ_THREADS, "tiered-fetch")
        self._closing = ExitStack()
        if retention_is_explicit is None:
            retention_is_explicit = config.file_reserved_time_hours != _DEFAULT_RETENTION_HOURS
        self.topic_filter = TopicFilter(config, self.metrics)
        self.flat_files = FlatFileStore(config, provider, metadata, clock)
        self.expiry = TierExpiry(
            config,
            self.flat_files,
            clock,
            self.metrics,
            reserve_hours=self._topic_reserve_hours,
            retention_is_explicit=retention_is_explicit,
        )
        self.index = IndexStoreService(
            config,
            provider,
            metadata,
            Path(state_dir),
            clock,
            metrics=self.metrics,
            retention_hours=self.expiry.longest_retention_hours,
            check_writer=self.flat_files.check_writer,
        )
        self.fetcher = MessageStoreFetcher(
            config,
            self.flat_files,
            self.index,
            metadata,
            self.topic_filter,
            clock,
            self.metrics,
            self._threads,
        )
        self._dispatcher: MessageStoreDispatcher | None = None
        self._gauges = TierGauges(self.flat_files, self.fetcher.cache, clock, self.metrics)
        self._clock = clock

    @classmethod
    def from_config(
        cls, next_store: MessageStore, loaded: LoadedConfig, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """The plugin as a broker's configuration describes it."""
        config = loaded.config
        return cls(
            next_store,
            config,
            registry.segment_provider(config),
            registry.metadata_store(config, clock),
            config.store_path_root_dir,
            clock,
            retention_is_explicit="tieredStoreFileReservedTime" in loaded.explicit_keys,
        )

    @property
    def _source(self) -> DispatchSource:
        return self._next.dispatch_source

    @property
    def dispatch_source(self) -> DispatchSource:
        return self._next.dispatch_source

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

    # Life

    def load(self) -> None:
        """Open tier and next store. Raises Fenced when another writer of this tier lives, and what
        the parts raise; what was opened is closed again then."""
        with ExitStack() as opened:
            opened.callback(self._provider.close)
            opened.callback(self._metadata.close)
            # The next store comes first: it decides whether the state directory is a store's.
            self._next.load()
            opened.callback(self._next.shutdown)
            if self._is_enabled:
                self._load_tier(opened)
            opened.callback(self._threads.shutdown)
            self._closing = opened.pop_all()

    def _load_tier(self, opened: ExitStack) -> None:
        self._metadata.load()
        opened.callback(self.flat_files.close)
        if self._is_writer:
            # A new tier's folders are made by its writer. A known one must be there already: a
            # disk that is not mounted is not to be taken for a tier that lost everything.
            makes_folders = not self._provider.capabilities.conditional
            if makes_folders and any(True for _ in self._metadata.segments()):
                any(True for _ in self._provider.list(self._config.broker_name))
            self.flat_files.become_writer()
            self._metadata.load()  # with what a writer that just ended has recorded
        self.flat_files.load()
        if self._is_writer:
            self.flat_files.record_recovered()
            if not self._provider.capabilities.durable:
                _log.warning(
                    "%s keeps nothing when this process ends: a tier for tests only; set "
                    "tieredBackendServiceProvider",
                    self._provider.url,
                )
        for topic, reason in self._source.left_out_topics().items():
            self.topic_filter.exclude(topic, reason)
        self.index.recover()
        opened.callback(lambda: self.index.stop(force=self._is_writer))

    def start(self) -> None:
        """Begin to serve, upload and expire. Raises Fenced, Unavailable."""
        self._next.start()
        if self._is_writer:
            self.index.start()
            self._closing.callback(self.dispatcher.finish)
            self.dispatcher.start()
            self._closing.callback(self.expiry.stop)
            self.expiry.start()

    def shutdown(self) -> None:
        """Stop expiring and uploading, then the index (which uploads what it has), then close the
        tier and the next store. All is tried; the last error is raised. Idempotent.

        Messages that are not uploaded stay in the next store and are uploaded after the next
        start; those that only wait for a larger write are uploaded now (`dispatcher.finish`).
        """
        closing, self._closing = self._closing, ExitStack()
        closing.close()

    # Puts

    def put_message(self, message: Message) -> PutMessageResult:
        return self._next.put_message(message)

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        return self._next.put_messages(messages)

    def wait_until_visible(self, result: PutMessageResult) -> None:
        self._next.wait_until_visible(result)

    # Gets

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        key = QueueKey(topic, queue_id)
        if self._reads_tier(key, offset, max_count):
            result = self.fetcher.get_message(
                group, topic, queue_id, offset, max_count, message_filter
            )
            if not self._falls_back(group, key, offset, result):
                return self._merged(group, key, result)
        return self._next.get_message(group, topic, queue_id, offset, max_count, message_filter)

    async def get_message_async(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        key = QueueKey(topic, queue_id)
        if self._reads_tier(key, offset, max_count):
            result = await self.fetcher.get_message_async(
                group, topic, queue_id, offset, max_count, message_filter
            )
            if not self._falls_back(group, key, offset, result):
                return self._merged(group, key, result)
        return await self._next.get_message_async(
            group, topic, queue_id, offset, max_count, message_filter
        )

    def _is_tiered(self, topic: str) -> bool:
        return self._is_enabled and not self.topic_filter.is_filtered(topic)

    def _reads_tier(self, key: QueueKey, offset: int, count: int) -> bool:
        return self._is_tiered(key.topic) and routing.reads_tier(
            self._config.storage_level,
            self._source,
            self.flat_files.get(key.topic, key.queue_id),
            key,
            offset,
            count,
        )

    def _falls_back(self, group: str, key: QueueKey, offset: int, result: GetMessageResult) -> bool:
        """Whether the tier has no answer and the next store has the message.

        A tier that begins later (it expired, or was switched on late) must not send a reader past
        messages that are on the disk; only FORCE, which asks for the tier alone, does.
        """
        fails = result.status in _FALLBACK_STATUSES or (
            result.status is GetMessageStatus.OFFSET_TOO_SMALL and not self._is_force
        )
        if not fails or not self._source.is_in_store(key, offset):
            return False
        self.metrics.count(FALLBACKS, operation="get_message", topic=key.topic, group=group)
        return True

    def _merged(self, group: str, key: QueueKey, result: GetMessageResult) -> GetMessageResult:
        """The tier's answer with the minimum of both stores. The maximum stays the tier's, since
        it belongs to what was looked at."""
        if result.status is GetMessageStatus.FOUND:
            self.metrics.count(MESSAGES_OUT, len(result.messages), topic=key.topic, group=group)
        local = self._source.queue_range(key)
        if local is not None and local.min_offset < local.max_offset:
            result.min_offset = min(result.min_offset, local.min_offset)
        return result

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        return self._next.look_message_by_offset(physical_offset)

    # Offsets and times

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The first message that either store has; the next store's answer when none has one."""
        low, high = self._tier_range(topic, queue_id)
        if low == high:
            return self._next.get_min_offset_in_queue(topic, queue_id)
        local = self._source.queue_range(QueueKey(topic, queue_id))
        if local is None or local.min_offset >= local.max_offset:
            return low
        return routing.earliest(low, local.min_offset)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The next store's, which assigns offsets; the tier's for a queue that only it has."""
        local = self._next.get_max_offset_in_queue(topic, queue_id)
        if local > 0:
            return local
        low, high = self._tier_range(topic, queue_id)
        return high if low < high else local

    def _tier_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[first, behind last) offsets in the tier; equal when it has none."""
        file = self.flat_files.get(topic, queue_id) if self._is_tiered(topic) else None
        if file is None or not file.is_initialised:
            return 0, 0
        high = file.consume_queue_commit_offset
        return min(file.consume_queue_min_offset, high), high

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """LOWER: first message of both stores at or after the time, else the end. UPPER: the last
        at or before it, else the first message. Raises Unavailable when the tier is needed for
        that and cannot be read."""
        if self._is_tiered(topic):
            if self._is_force:
                return self.fetcher.offset_by_time(topic, queue_id, timestamp_ms, boundary)
            tier = self.fetcher.time_side(topic, queue_id)
            if tier is not None:
                sides = [tier, *self._local_side(topic, queue_id)]
                found = routing.offset_by_time(sides, timestamp_ms, boundary)
                if found >= 0:
                    return found
        return self._next.get_offset_in_queue_by_time(topic, queue_id, timestamp_ms, boundary)

    def _local_side(self, topic: str, queue_id: int) -> list[routing.TimeSide]:
        local = self._source.queue_range(QueueKey(topic, queue_id))
        if local is None:
            return []
        return [
            routing.TimeSide(
                local.min_offset,
                local.max_offset,
                lambda time_ms, boundary: self._next.get_offset_in_queue_by_time(
                    topic, queue_id, time_ms, boundary
                ),
                lambda offset: self._next.get_message_store_timestamp(topic, queue_id, offset),
            )
        ]

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        local = self._next.get_earliest_message_time(topic, queue_id)
        if topic is None or queue_id is None:
            if not self._is_enabled:
                return local
            times = [file.min_store_timestamp_ms for file in self.flat_files.files()]
            return routing.earliest(local, *times)
        if not self._is_tiered(topic):
            return local
        return routing.earliest(local, self.fetcher.earliest_time(topic, queue_id))

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        if self._reads_tier(QueueKey(topic, queue_id), offset, 1):
            found = self.fetcher.store_timestamp(topic, queue_id, offset)
            if found >= 0 or self._is_force:
                return found
        return self._next.get_message_store_timestamp(topic, queue_id, offset)

    # Keys

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        """Messages of both stores, each once, by queue and offset; at most `max_count`.

        When the tier cannot be read, what the next store found is the answer; Unavailable is
        raised when that is nothing.
        """
        if not self._is_tiered(topic):
            return self._next.query_message(topic, key, max_count, begin_ms, end_ms)
        if self._is_force:
            return self.fetcher.query_message(topic, key, max_count, begin_ms, end_ms)
        local_earliest_ms = self._next.get_earliest_message_time()
        found: list[StoredMessage] = []
        if 0 <= local_earliest_ms <= end_ms:
            found = self._next.query_message(topic, key, max_count, begin_ms, end_ms)
        tier_end_ms = routing.tier_query_end_ms(end_ms, local_earliest_ms)
        if len(found) < max_count and begin_ms <= tier_end_ms:
            try:
                found += self.fetcher.query_message(topic, key, max_count, begin_ms, tier_end_ms)
            except TieredStoreError as error:
                if not found:
                    raise
                self.metrics.count(FALLBACKS, operation="query_message", topic=topic, group="")
                _log.warning("%s: query without the tier: %s", topic, error)
        distinct: dict[tuple[int, int], StoredMessage] = {}
        for message in found:
            if len(distinct) < max_count:
                distinct.setdefault((message.queue_id, message.queue_offset), message)
        return [distinct[place] for place in sorted(distinct)]

    # Topics

    def delete_topics(self, topics: set[str]) -> int:
        """Delete topics from both stores, the next one first, so that nothing is uploaded again."""
        count = self._next.delete_topics(topics)
        if not self._is_enabled:
            return count
        found = self.flat_files.destroy_topics(topics)
        for topic, queue_ids in found:
            for queue_id in queue_ids:
                self.fetcher.cache.drop(QueueKey(topic.topic, queue_id))
                self.index.forget(topic.topic_id, queue_id)
        return max(count, len(found))

    # Metrics

    def collect_metrics(self) -> None:
        """Bring the gauges up to date; an exporter calls it before it reads `metrics`."""
        if self._is_enabled:
            self._gauges.collect()
