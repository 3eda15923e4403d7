"""A store's metrics in the form of Prometheus, by `prometheus_client`.

Each series gets Java's base labels (`cluster`, `node_type`, `node_id`), those of a tiered store
also `storage_type` and `storage_medium`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tieredstore.metrics import Histogram, Labels, Metrics

MAX_SERIES: Final = 50_000
"""Most series that one scrape gets, Java's metricsOtelCardinalityLimit; further ones are left out,
and counted by `rocketmq_tiered_store_x_series_left_out`."""
LEFT_OUT: Final = "rocketmq_tiered_store_x_series_left_out"
_TIERED: Final = {"storage_type": "tiered", "storage_medium": "blob"}
_TIERED_PREFIX: Final = "rocketmq_tiered_store_"
_OURS_PREFIX: Final = "rocketmq_tiered_store_x_"
_OF_BOTH: Final = frozenset({"rocketmq_storage_size", "rocketmq_storage_message_reserve_time"})
"""Names that the local store has as well, which says so by labels of its own."""


class MetricsExporter(Collector):
    """Renders registries of metrics as text. node_id: the broker's name."""

    def __init__(self, cluster: str, node_id: str, max_series: int = MAX_SERIES) -> None:
        self._base = {"cluster": cluster, "node_type": "broker", "node_id": node_id}
        self._max_series = max_series
        self._sources: Sequence[Metrics] = ()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, sources: Sequence[Metrics]) -> bytes:
        """Write all series of some registries as the text of one scrape. A series that several have
        is rendered once, of the first. One call at a time."""
        self._sources = sources
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield a family for each name; called by prometheus_client."""
        series = self._list_series()
        left_out = 0
        count = 0
        for name, rows in series.items():
            room = max(self._max_series - count, 0)
            left_out += max(len(rows) - room, 0)
            count += len(rows)
            if room:
                yield from self._make_families(name, rows, room)
        yield GaugeMetricFamily(LEFT_OUT, "Series beyond the limit of one scrape.", left_out)

    def _list_series(self) -> dict[str, dict[Labels, float | Histogram]]:
        series: dict[str, dict[Labels, float | Histogram]] = {}
        for source in self._sources:
            for name, labels, value in source.snapshot():
                series.setdefault(name, {}).setdefault(labels, value)
        return dict(sorted(series.items()))

    def _make_families(
        self, name: str, rows: Mapping[Labels, float | Histogram], room: int
    ) -> Iterator[Metric]:
        """One family for each set of label names: a family has one."""
        is_tiered = name.startswith(_TIERED_PREFIX) and not name.startswith(_OURS_PREFIX)
        base = self._base | (_TIERED if is_tiered or name in _OF_BOTH else {})
        by_names: dict[tuple[str, ...], list[tuple[dict[str, str], float | Histogram]]] = {}
        for labels, value in list(rows.items())[:room]:
            merged = base | dict(labels)
            by_names.setdefault(tuple(merged), []).append((merged, value))
        for label_names, found in by_names.items():
            yield _make_family(name, label_names, found)


def _make_family(
    name: str, label_names: tuple[str, ...], rows: list[tuple[dict[str, str], float | Histogram]]
) -> Metric:
    first = rows[0][1]
    family: HistogramMetricFamily | CounterMetricFamily | GaugeMetricFamily
    if isinstance(first, Histogram):
        family = HistogramMetricFamily(name, name, labels=label_names)
        for labels, value in rows:
            assert isinstance(value, Histogram)
            bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(map(float, value.counts)), strict=True))
            family.add_metric(list(labels.values()), buckets, value.total)
        return family
    family = (
        CounterMetricFamily(name, name, labels=label_names)
        if name.endswith("_total")
        else GaugeMetricFamily(name, name, labels=label_names)
    )
    for labels, value in rows:
        assert not isinstance(value, Histogram)
        family.add_metric(list(labels.values()), value)
    return family
