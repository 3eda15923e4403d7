"""Gauges of a tier that are worth computing only when somebody looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.metrics import Metrics
    from tieredstore.tier.fetch.read_ahead import ReadAheadCache
    from tieredstore.tier.flat.file_store import FlatFileStore

CACHE_COUNT = "rocketmq_tiered_store_read_ahead_cache_count"
CACHE_BYTES = "rocketmq_tiered_store_read_ahead_cache_bytes"
CACHE_ACCESSES = "rocketmq_tiered_store_read_ahead_cache_access_total"
CACHE_HITS = "rocketmq_tiered_store_read_ahead_cache_hit_total"
CACHE_FETCHED = "rocketmq_tiered_store_x_read_ahead_fetched_messages_total"
CACHE_WASTED = "rocketmq_tiered_store_x_read_ahead_wasted_messages_total"
STORAGE_SIZE = "rocketmq_storage_size"
MESSAGE_RESERVE_TIME = "rocketmq_storage_message_reserve_time"


class TierGauges:
    """Names, labels and meanings are Java's; counts of the cache are blocks, bytes its weight.

    As in Java the label `topic` of the storage size holds the path of the queue's files.
    """

    def __init__(
        self, flat_files: FlatFileStore, cache: ReadAheadCache, clock: Clock, metrics: Metrics
    ) -> None:
        self._flat_files = flat_files
        self._cache = cache
        self._clock = clock
        self._metrics = metrics

    def collect(self) -> None:
        self._cache.expire()
        stats = self._cache.stats
        gauge = self._metrics.gauge
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
