"""Status of a `TieredMessageStore`'s tier, for `/health` and the start report."""

from __future__ import annotations

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import MessageStore, TierStatus
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.metrics import Metrics
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.fetch.unreadable import UnreadablePlaces
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

_HOUR_MS = 3_600_000
_MOST_FAULTS = 10


def describe_tier(
    flat_files: FlatFileStore,
    next_store: MessageStore,
    topic_filter: TopicFilter,
    clock: Clock,
    dispatcher: MessageStoreDispatcher | None,
    unreadable: UnreadablePlaces | None = None,
) -> TierStatus:
    """Return the status of a tier. `dispatcher`: None if nothing is uploaded."""
    behind, oldest_ms = 0, -1
    if dispatcher is not None:
        behind, oldest_ms = _find_backlog(flat_files, next_store, topic_filter)
    behind_ms = max(clock.now_ms() - oldest_ms, 0) if oldest_ms >= 0 else 0
    reserved_ms = flat_files.config.local_file_reserved_time_hours * _HOUR_MS
    sizes = [entry.size for entry in flat_files.metadata.segments()]
    metered = find_layer(flat_files.provider, MeteredProvider)
    return TierStatus(
        url=flat_files.provider.url,
        is_writer=dispatcher is not None,
        fenced=None if dispatcher is None else dispatcher.fenced_reason,
        last_scan_ms=None if dispatcher is None else dispatcher.last_good_scan_ms,
        behind_messages=behind,
        behind_ms=behind_ms,
        hours_to_local_expiry=(reserved_ms - behind_ms) / _HOUR_MS if behind else None,
        failing_queues=0 if dispatcher is None else len(dispatcher.failing_queues),
        size_bytes=sum(sizes),
        segments=len(sizes),
        queues=sum(1 for _ in flat_files.files()),
        storage_usd_per_month=(
            None if metered is None else metered.prices.price_storage(sum(sizes))
        ),
        requests_usd=None if metered is None else metered.usage().cost_usd,
        unreadable=unreadable.list_faults()[:_MOST_FAULTS] if unreadable else (),
        left_out=unreadable.list_left_out()[:_MOST_FAULTS] if unreadable else (),
    )


def _find_backlog(
    flat_files: FlatFileStore, next_store: MessageStore, topic_filter: TopicFilter
) -> tuple[int, int]:
    """Return the number of messages that are not uploaded, and the store time of the oldest one (-1
    without such messages)."""
    source = next_store.dispatch_source
    behind, oldest_ms = 0, -1
    for key in source.queues():
        available = source.queue_range(key) if topic_filter.is_uploaded(key.topic) else None
        if available is None:
            continue
        file = flat_files.get(key.topic, key.queue_id)
        begin = available.min_offset
        if file is not None and file.is_initialised:
            begin = max(begin, file.consume_queue_commit_offset)
        if begin < available.max_offset:
            behind += available.max_offset - begin
            time_ms = next_store.get_message_store_timestamp(key.topic, key.queue_id, begin)
            if time_ms >= 0:
                oldest_ms = time_ms if oldest_ms < 0 else min(oldest_ms, time_ms)
    return behind, oldest_ms


CACHE_COUNT = "rocketmq_tiered_store_read_ahead_cache_count"
CACHE_BYTES = "rocketmq_tiered_store_read_ahead_cache_bytes"
CACHE_ACCESSES = "rocketmq_tiered_store_read_ahead_cache_access_total"
CACHE_HITS = "rocketmq_tiered_store_read_ahead_cache_hit_total"
CACHE_FETCHED = "rocketmq_tiered_store_x_read_ahead_fetched_messages_total"
CACHE_WASTED = "rocketmq_tiered_store_x_read_ahead_wasted_messages_total"
UNREADABLE_QUEUES = "rocketmq_tiered_store_x_unreadable_queues"
STORAGE_SIZE = "rocketmq_storage_size"
MESSAGE_RESERVE_TIME = "rocketmq_storage_message_reserve_time"


class TierGauges:
    """Gauges with Java's names, labels and meanings. The size of the cache is its number of blocks,
    and its bytes are the memory that they need. As in Java, the label `topic` of the storage size
    contains the path of the queue's files."""

    def __init__(
        self,
        flat_files: FlatFileStore,
        fetcher: MessageStoreFetcher,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._flat_files = flat_files
        self._cache = fetcher.cache
        self._unreadable = fetcher.unreadable
        self._clock = clock
        self._metrics = metrics

    def collect(self) -> None:
        self._cache.expire()
        stats = self._cache.stats
        gauge = self._metrics.gauge
        gauge(UNREADABLE_QUEUES, len(self._unreadable.list_faults()))
        gauge(CACHE_COUNT, self._cache.block_count)
        gauge(CACHE_BYTES, self._cache.size_bytes)
        gauge(CACHE_ACCESSES, stats.accesses)
        gauge(CACHE_HITS, stats.hits)
        gauge(CACHE_FETCHED, stats.fetched_messages)
        gauge(CACHE_WASTED, stats.wasted_messages)
        sizes: dict[tuple[str, str], int] = {}
        for entry in self._flat_files.metadata.segments():
            place = entry.path, entry.type.name.lower()
            sizes[place] = sizes.get(place, 0) + entry.size
        for (path, file_type), size_bytes in sizes.items():
            gauge(STORAGE_SIZE, size_bytes, topic=path, file_type=file_type)
        now_ms = self._clock.now_ms()
        for file in self._flat_files.files():
            earliest_ms = file.min_store_timestamp_ms
            if 0 <= earliest_ms < now_ms:
                gauge(
                    MESSAGE_RESERVE_TIME,
                    now_ms - earliest_ms,
                    topic=file.topic,
                    queue_id=file.queue_id,
                )
