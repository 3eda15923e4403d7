"""What `TieredMessageStore` says of its tier, for `/health` and the report at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.contracts.tier_status import TierStatus
from tieredstore.contracts.usage import MeteredProvider
from tieredstore.contracts.wrapping import find_layer

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.contracts.message_store import MessageStore
    from tieredstore.tier.flat.file_store import FlatFileStore
    from tieredstore.tier.policy.topic_filter import TopicFilter
    from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

_HOUR_MS = 3_600_000


def describe_tier(
    flat_files: FlatFileStore,
    next_store: MessageStore,
    topic_filter: TopicFilter,
    clock: Clock,
    dispatcher: MessageStoreDispatcher | None,
) -> TierStatus:
    """Compute the status of a tier. dispatcher: None where nothing is uploaded."""
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
    )


def _find_backlog(
    flat_files: FlatFileStore, next_store: MessageStore, topic_filter: TopicFilter
) -> tuple[int, int]:
    """Count the messages that are not uploaded, and find the store time of the oldest, -1 without
    one."""
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
