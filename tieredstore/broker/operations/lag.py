"""How far consumer groups are behind, as metrics (Java's ConsumerLagCalculator)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tieredstore.clock import Clock
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import TieredStoreError
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from tieredstore.metrics import Metrics

LAG_MESSAGES: Final = "rocketmq_consumer_lag_messages"
LAG_LATENCY: Final = "rocketmq_consumer_lag_latency"


class GroupOffsets(NamedTuple):
    """Where a group stands in a topic: the offset of the next message to consume by queue."""

    group: str
    topic: str
    offsets: Mapping[int, int]


def report_lag(
    metrics: Metrics, store: MessageStore, clock: Clock, groups: Sequence[GroupOffsets]
) -> None:
    """Set the lag of each group in a registry: messages that are not consumed, and the age of the
    oldest of them in ms. May read the store's files: not for an event loop."""
    now_ms = clock.now_ms()
    for found in groups:
        behind = 0
        oldest_ms = -1
        for queue_id, offset in found.offsets.items():
            behind_here = store.get_max_offset_in_queue(found.topic, queue_id) - offset
            if behind_here <= 0:
                continue
            behind += behind_here
            time_ms = _find_time_ms(store, found.topic, queue_id, offset)
            if time_ms >= 0:
                oldest_ms = time_ms if oldest_ms < 0 else min(oldest_ms, time_ms)
        labels = {
            "topic": found.topic,
            "consumer_group": found.group,
            "is_retry": str(found.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))).lower(),
            "is_system": str(is_system_topic(found.topic)).lower(),
        }
        metrics.gauge(LAG_MESSAGES, behind, **labels)
        metrics.gauge(LAG_LATENCY, max(now_ms - oldest_ms, 0) if oldest_ms >= 0 else 0, **labels)


def _find_time_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    try:
        return store.get_message_store_timestamp(topic, queue_id, offset)
    except TieredStoreError:  # the tier is away: the count of messages is known all the same
        return -1
