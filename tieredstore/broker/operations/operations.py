"""Operations: collects and serves `/health` and `/metrics` of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from tieredstore.broker.operations.exporter import MetricsExporter, OtlpExporter, make_base_labels
from tieredstore.broker.operations.health import count_skipped, describe_health, find_tier
from tieredstore.broker.operations.http import OperationsServer
from tieredstore.broker.services import BrokerServices
from tieredstore.clock import Clock
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import TieredStoreError
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth

TOPICS: Final = "rocketmq_topic_number"
GROUPS: Final = "rocketmq_consumer_group_number"
PERMISSION: Final = "rocketmq_broker_permission"
PRODUCERS: Final = "rocketmq_producer_connections"
CONSUMERS: Final = "rocketmq_consumer_connections"
WAITING: Final = "rocketmq_tiered_store_x_waiting_pulls"
SKIPPED: Final = "rocketmq_tiered_store_x_skipped_records"
_T = TypeVar("_T")


@runtime_checkable
class CollectedStore(Protocol):
    """Store with a metrics registry of its own."""

    metrics: Metrics

    def collect_metrics(self) -> None: ...


class Operations:
    """Serves `/health` and `/metrics` of a broker. `list_services`: returns the health of all
    background loops, including those of the store."""

    def __init__(
        self, services: BrokerServices, list_services: Callable[[], Iterable[ServiceHealth]]
    ) -> None:
        self._services = services
        self._list_services = list_services
        settings = services.settings
        self._exporter = MetricsExporter(
            make_base_labels(settings), settings.metrics_cardinality_limit
        )
        self._server = OperationsServer(self.find_health, self.render_metrics)
        self._stores = _find_collected(services.store)
        self._scrape = asyncio.Lock()

    async def start(self, host: str, port: int) -> int:
        """Start serving, and return the port. Raises Unavailable if the port is in use."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        await self._server.stop()

    async def find_health(self) -> dict[str, object]:
        tier = await asyncio.to_thread(find_tier, self._services.store)
        skipped = count_skipped(self._services.skipped, self._services.store)
        return describe_health(self._list_services(), tier, skipped)

    async def render_metrics(self) -> bytes:
        """Return the content of `/metrics`. Scrapes must not overlap."""
        return await self._use_metrics(self._exporter.render)

    async def send_metrics(self, otlp: OtlpExporter) -> None:
        """Send the current values of all metrics to a receiver. Raises Unavailable."""
        await self._use_metrics(lambda sources: otlp.send(self._exporter.gather(sources)))

    async def _use_metrics(self, use: Callable[[list[Metrics]], _T]) -> _T:
        async with self._scrape:
            gauges = self._count_broker()
            groups = self._list_group_offsets()
            return await self._services.look_ups.run(lambda: use(self._collect(gauges, groups)))

    def _collect(self, gauges: Metrics, groups: list[GroupOffsets]) -> list[Metrics]:
        services = self._services
        for store in self._stores[:1]:
            store.collect_metrics()
        report_lag(gauges, services.store, services.clock, groups)
        return [gauges, services.metrics, *(store.metrics for store in self._stores)]

    def _count_broker(self) -> Metrics:
        services = self._services
        metrics = Metrics()  # created for each scrape: deleted objects have no series
        metrics.gauge(TOPICS, len(services.topics.list_topics()))
        metrics.gauge(GROUPS, len(services.groups.list_groups()))
        metrics.gauge(PERMISSION, services.settings.broker_permission)
        metrics.gauge(WAITING, services.hold.count)
        for topic, count in count_skipped(services.skipped, services.store).items():
            metrics.gauge(SKIPPED, count, topic=topic)
        for group, sessions in services.producers.list_groups().items():
            metrics.gauge(PRODUCERS, len(sessions), producer_group=group)
        for group, found in services.consumers.list_groups().items():
            metrics.gauge(CONSUMERS, len(found.consumers), consumer_group=group)
        return metrics

    def _list_group_offsets(self) -> list[GroupOffsets]:
        """Return the consumer offsets of all groups in existing topics. Deleted topics have no
        lag."""
        services = self._services
        topics = services.topics.list_topics()
        return [
            GroupOffsets(group, topic, dict(services.offsets.list_offsets(group, topic)))
            for group, topic in services.offsets.list_keys()
            if topic in topics
        ]


def _find_collected(store: object) -> list[CollectedStore]:
    """Return the layers of a store that have a metrics registry, outermost first. A registry
    includes the metrics of the layers below."""
    found: list[CollectedStore] = []
    layer: object | None = store
    while layer is not None:
        if isinstance(layer, CollectedStore):
            found.append(layer)
        layer = getattr(layer, "next_store", None)
    return found


LAG_MESSAGES: Final = "rocketmq_consumer_lag_messages"
LAG_LATENCY: Final = "rocketmq_consumer_lag_latency"


class GroupOffsets(NamedTuple):
    """Offsets of a group in a topic, by queue id. Each is the offset of the next message to
    consume."""

    group: str
    topic: str
    offsets: Mapping[int, int]


def report_lag(
    metrics: Metrics, store: MessageStore, clock: Clock, groups: Sequence[GroupOffsets]
) -> None:
    """Set the lag of each group in a registry: the number of unconsumed messages, and the age of
    the oldest one (ms). May read files of the store, so do not call it on an event loop."""
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
    except TieredStoreError:  # the tier does not answer: the number of messages is known anyway
        return -1
