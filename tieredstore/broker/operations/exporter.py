"""A store's metrics in the form of Prometheus, by `prometheus_client`.

Each series gets Java's base labels (`cluster`, `node_type`, `node_id`, those of `metricsLabel`),
those of a tiered store also `storage_type` and `storage_medium`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tieredstore.errors import Invalid
from tieredstore.metrics import Histogram, Labels, Metrics

if TYPE_CHECKING:
    from tieredstore.broker.settings import BrokerSettings

MAX_SERIES: Final = 50_000
"""Most series that one scrape gets, Java's metricsOtelCardinalityLimit; further ones are left out,
and counted by `rocketmq_tiered_store_x_series_left_out`."""
LEFT_OUT: Final = "rocketmq_tiered_store_x_series_left_out"
_LABEL_NAME: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_TIERED: Final = {"storage_type": "tiered", "storage_medium": "blob"}
_TIERED_PREFIX: Final = "rocketmq_tiered_store_"
_OURS_PREFIX: Final = "rocketmq_tiered_store_x_"
_OF_BOTH: Final = frozenset({"rocketmq_storage_size", "rocketmq_storage_message_reserve_time"})
"""Names that the local store has as well, which says so by labels of its own."""


class Series(NamedTuple):
    """One series: a metric's name, all its labels, its value now."""

    name: str
    labels: dict[str, str]
    value: float | Histogram

    @property
    def counts(self) -> bool:
        """Whether it only grows: a counter or a histogram, no gauge."""
        return isinstance(self.value, Histogram) or self.name.endswith("_total")


def parse_pairs(text: str, key: str) -> dict[str, str]:
    """Read `name:value` pairs joined by commas, the value of a key. Raises Invalid, without the
    text, which may be a secret."""
    pairs = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, found, value = pair.partition(":")
        if not found:
            raise Invalid(f"{key}: expected name:value pairs joined by commas")
        pairs[name.strip()] = value.strip()
    return pairs


def make_base_labels(settings: BrokerSettings) -> dict[str, str]:
    """Make the labels that each series of a broker has. Raises Invalid for names that no label may
    have."""
    labels = parse_pairs(settings.metrics_label, "metricsLabel")
    for name in labels:
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise Invalid(
                f"metricsLabel: {name!r}: expected a letter or _, then letters, digits and _"
            )
    if settings.metrics_in_delta:
        labels["aggregation"] = "delta"
    return labels | {
        "cluster": settings.broker_cluster_name,
        "node_type": "broker",
        "node_id": settings.broker_name,
    }


class MetricsExporter(Collector):
    """Renders registries of metrics as text. base: labels of every series."""

    def __init__(self, base: Mapping[str, str], max_series: int = MAX_SERIES) -> None:
        self._base = dict(base)
        self._max_series = max_series
        self._sources: Sequence[Metrics] = ()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, sources: Sequence[Metrics]) -> bytes:
        """Write all series of some registries as the text of one scrape. One call at a time."""
        self._sources = sources
        return generate_latest(self._registry)

    def gather(self, sources: Sequence[Metrics]) -> list[Series]:
        """List all series of some registries, with all labels, by name. A series that several have
        is that of the first. Those beyond the limit are left out, and counted by the last one."""
        found: dict[str, dict[Labels, float | Histogram]] = {}
        for source in sources:
            for name, labels, value in source.snapshot():
                found.setdefault(name, {}).setdefault(labels, value)
        series: list[Series] = []
        left_out = 0
        for name, rows in sorted(found.items()):
            room = self._max_series - len(series)
            left_out += max(len(rows) - room, 0)
            base = self._find_base(name)
            series += [
                Series(name, base | dict(labels), value)
                for labels, value in list(rows.items())[:room]
            ]
        return [*series, Series(LEFT_OUT, {}, left_out)]

    def collect(self) -> Iterable[Metric]:
        """Yield the families of a scrape; called by prometheus_client."""
        by_names: dict[tuple[str, ...], list[Series]] = {}
        for one in self.gather(self._sources):
            # A family has one set of label names.
            by_names.setdefault((one.name, *one.labels), []).append(one)
        yield from map(_make_family, by_names.values())

    def _find_base(self, name: str) -> dict[str, str]:
        is_tiered = name.startswith(_TIERED_PREFIX) and not name.startswith(_OURS_PREFIX)
        return self._base | (_TIERED if is_tiered or name in _OF_BOTH else {})


def _make_family(series: list[Series]) -> Metric:
    name, names = series[0].name, list(series[0].labels)
    family: HistogramMetricFamily | CounterMetricFamily | GaugeMetricFamily
    if isinstance(series[0].value, Histogram):
        family = HistogramMetricFamily(name, name, labels=names)
    elif series[0].counts:
        family = CounterMetricFamily(name, name, labels=names)
    else:
        family = GaugeMetricFamily(name, name, labels=names)
    for _, labels, value in series:
        if isinstance(value, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(map(float, value.counts)), strict=True))
            family.add_metric(list(labels.values()), buckets, value.total)
        else:
            assert not isinstance(family, HistogramMetricFamily)
            family.add_metric(list(labels.values()), value)
    return family
