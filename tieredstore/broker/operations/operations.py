"""Operations: what an operator asks a broker, gathered from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from tieredstore.broker.operations.exporter import MetricsExporter, make_base_labels
from tieredstore.broker.operations.health import describe_health, find_tier
from tieredstore.broker.operations.http import OperationsServer
from tieredstore.broker.operations.lag import GroupOffsets, report_lag
from tieredstore.broker.operations.otlp import OtlpExporter
from tieredstore.broker.services import BrokerServices
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth

TOPICS: Final = "rocketmq_topic_number"
GROUPS: Final = "rocketmq_consumer_group_number"
PERMISSION: Final = "rocketmq_broker_permission"
PRODUCERS: Final = "rocketmq_producer_connections"
CONSUMERS: Final = "rocketmq_consumer_connections"
WAITING: Final = "rocketmq_tiered_store_x_waiting_pulls"
_T = TypeVar("_T")


@runtime_checkable
class CollectedStore(Protocol):
    """A store with a registry of metrics."""

    metrics: Metrics

    def collect_metrics(self) -> None: ...


class Operations:
    """Serves `/health` and `/metrics` of one broker. list_services: how the broker's background
    loops are, the store's among them."""

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
        """Begin to answer; returns the port. Raises Unavailable when it is taken."""
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Stop answering. Idempotent."""
        await self._server.stop()

    async def find_health(self) -> dict[str, Any]:
        """Return what `/health` answers."""
        tier = await asyncio.to_thread(find_tier, self._services.store)
        return describe_health(self._list_services(), tier)

    async def render_metrics(self) -> bytes:
        """Return what `/metrics` answers. One scrape at a time."""
        return await self._use_metrics(self._exporter.render)

    async def send_metrics(self, otlp: OtlpExporter) -> None:
        """Send what a scrape would get. Raises Unavailable."""
        await self._use_metrics(lambda sources: otlp.send(self._exporter.gather(sources)))

    async def _use_metrics(self, use: Callable[[list[Metrics]], _T]) -> _T:
        """Call `use` with all registries, brought up to date, in a thread."""
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
        metrics = Metrics()  # made anew with each scrape: what is gone has no series
        metrics.gauge(TOPICS, len(services.topics.list_topics()))
        metrics.gauge(GROUPS, len(services.groups.list_groups()))
        metrics.gauge(PERMISSION, services.settings.broker_permission)
        metrics.gauge(WAITING, services.hold.count)
        for group, sessions in services.producers.list_groups().items():
            metrics.gauge(PRODUCERS, len(sessions), producer_group=group)
        for group, found in services.consumers.list_groups().items():
            metrics.gauge(CONSUMERS, len(found.consumers), consumer_group=group)
        return metrics

    def _list_group_offsets(self) -> list[GroupOffsets]:
        """Of topics that exist: what was deleted has no lag."""
        services = self._services
        topics = services.topics.list_topics()
        return [
            GroupOffsets(group, topic, dict(services.offsets.list_offsets(group, topic)))
            for group, topic in services.offsets.list_keys()
            if topic in topics
        ]


def _find_collected(store: object) -> list[CollectedStore]:
    """List the layers of a store that have a registry, the outermost first: it collects what is
    below, too."""
    found: list[CollectedStore] = []
    layer: object | None = store
    while layer is not None:
        if isinstance(layer, CollectedStore):
            found.append(layer)
        layer = getattr(layer, "next_store", None)
    return found
