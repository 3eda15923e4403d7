"""Metrics exporters for Prometheus and OTLP."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tieredstore.broker.operations.metric_table import METRICS
from tieredstore.broker.settings import BrokerSettings
from tieredstore.errors import Invalid, Unavailable, make_missing_error
from tieredstore.metrics import Histogram, Labels, Metrics

MAX_SERIES: Final = 50_000
"""Maximum number of series in a scrape (Java's metricsOtelCardinalityLimit). Further series are
dropped and counted by `rocketmq_tiered_store_x_series_left_out`."""
LEFT_OUT: Final = "rocketmq_tiered_store_x_series_left_out"
_LABEL_NAME: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_TIERED: Final = {"storage_type": "tiered", "storage_medium": "blob"}
_TIERED_PREFIX: Final = "rocketmq_tiered_store_"
_OURS_PREFIX: Final = "rocketmq_tiered_store_x_"
_OF_BOTH: Final = frozenset({"rocketmq_storage_size", "rocketmq_storage_message_reserve_time"})
"""Metrics that both the tier and the local store have, with different storage labels."""


class Series(NamedTuple):
    """Time series: metric name, all labels, current value."""

    name: str
    labels: dict[str, str]
    value: float | Histogram

    @property
    def counts(self) -> bool:
        """Return whether the series only grows, like a counter or histogram and unlike a gauge."""
        return isinstance(self.value, Histogram) or self.name.endswith("_total")


def parse_pairs(text: str, key: str) -> dict[str, str]:
    """Parse a setting with `name:value` pairs separated by commas. Raises Invalid. The message
    omits the text, which may be a secret."""
    pairs = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, found, value = pair.partition(":")
        if not found:
            raise Invalid(f"{key}: expected name:value pairs joined by commas")
        pairs[name.strip()] = value.strip()
    return pairs


def make_base_labels(settings: BrokerSettings) -> dict[str, str]:
    """Return the labels of every series of a broker. Raises Invalid for an invalid label name."""
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
    """Renders metric registries as text. `base`: labels of every series."""

    def __init__(self, base: Mapping[str, str], max_series: int = MAX_SERIES) -> None:
        self._base = dict(base)
        self._max_series = max_series
        self._sources: Sequence[Metrics] = ()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, sources: Sequence[Metrics]) -> bytes:
        """Render all series of the registries as one scrape. Calls must not overlap."""
        self._sources = sources
        return generate_latest(self._registry)

    def gather(self, sources: Sequence[Metrics]) -> list[Series]:
        """Return all series of the registries with all their labels, sorted by metric name. If
        several registries have the same series, the first registry wins. Series beyond the limit
        are dropped, and an additional series counts them."""
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
        """Yield the metric families of a scrape. Called by prometheus_client."""
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
    text = METRICS[name].meaning if name in METRICS else name
    family: HistogramMetricFamily | CounterMetricFamily | GaugeMetricFamily
    if isinstance(series[0].value, Histogram):
        family = HistogramMetricFamily(name, text, labels=names)
    elif series[0].counts:
        family = CounterMetricFamily(name, text, labels=names)
    else:
        family = GaugeMetricFamily(name, text, labels=names)
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


SCOPE: Final = "broker-meter"
"""Name of the OpenTelemetry meter in Java's broker."""


class OtlpExporter:
    """Sends series to `metricsGrpcExporterTarget`. All calls block."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raise Invalid if the target is missing, the headers are invalid, or the extra `otel` is
        not installed."""
        self._target = settings.metrics_grpc_exporter_target
        if not self._target:
            raise Invalid("metricsExporterType=OTLP_GRPC: expected metricsGrpcExporterTarget")
        header = settings.metrics_grpc_exporter_header
        headers = {
            name.lower(): value
            for name, value in parse_pairs(header, "metricsGrpcExporterHeader").items()
        }
        try:
            from opentelemetry.exporter.otlp.proto.grpc import metric_exporter
        except ModuleNotFoundError as error:
            raise make_missing_error("metricsExporterType=OTLP_GRPC", error, "otel") from error
        # The caller logs a failure once.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._exporter: Any = metric_exporter.OTLPMetricExporter(
            endpoint=self._target if "://" in self._target else f"https://{self._target}",
            headers=headers or None,
            timeout=settings.metric_grpc_exporter_timeout_ms / 1000,
        )
        self._begin_ns = time.time_ns()
        self._deltas = Deltas() if settings.metrics_in_delta else None

    def send(self, series: Sequence[Series]) -> None:
        """Send series once. Raises Unavailable if the receiver did not accept them."""
        from opentelemetry.sdk.metrics.export import (
            MetricExportResult,
            MetricsData,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = time.time_ns()
        by_name: dict[str, list[Series]] = {}
        for one in series if self._deltas is None else self._deltas.subtract(series):
            by_name.setdefault(one.name, []).append(one)
        metrics = [self._make_metric(name, found, now_ns) for name, found in by_name.items()]
        scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
        resource = ResourceMetrics(Resource({"service.name": "rocketmq-broker"}), [scope], "")
        if self._exporter.export(MetricsData([resource])) is not MetricExportResult.SUCCESS:
            raise Unavailable(f"{self._target}: the receiver has not accepted the metrics")
        if self._deltas is not None:
            self._deltas.note_sent(series)
            self._begin_ns = now_ns

    def close(self) -> None:
        """Close the connection and abort a transmission in progress. Idempotent."""
        self._exporter.shutdown(timeout_millis=0)

    def _make_metric(self, name: str, series: list[Series], now_ns: int) -> Any:
        from opentelemetry.sdk.metrics import export

        data: export.Histogram | export.Sum | export.Gauge
        temporality = export.AggregationTemporality.CUMULATIVE
        if self._deltas is not None:
            temporality = export.AggregationTemporality.DELTA
        if isinstance(series[0].value, Histogram):
            buckets = [
                export.HistogramDataPoint(
                    attributes=one.labels,
                    start_time_unix_nano=self._begin_ns,
                    time_unix_nano=now_ns,
                    count=sum(one.value.counts),
                    sum=one.value.total,
                    bucket_counts=list(one.value.counts),
                    explicit_bounds=[float(bound) for bound in one.value.bounds],
                    min=-math.inf,  # unknown
                    max=math.inf,
                )
                for one in series
                if isinstance(one.value, Histogram)
            ]
            data = export.Histogram(buckets, temporality)
        else:
            points = [
                export.NumberDataPoint(one.labels, self._begin_ns, now_ns, one.value)
                for one in series
                if not isinstance(one.value, Histogram)
            ]
            counts = series[0].counts
            data = export.Sum(points, temporality, True) if counts else export.Gauge(points)
        return export.Metric(name, None, None, data)


_Key: TypeAlias = tuple[str, Labels]


class Deltas:
    """Computes by how much series have grown since they were last sent. Growth that a receiver did
    not accept is included in the next transmission."""

    def __init__(self) -> None:
        self._sent: dict[_Key, float | Histogram] = {}

    def subtract(self, series: Sequence[Series]) -> list[Series]:
        """Return the series with counters and histograms reduced to their growth since the last
        transmission. Gauges are unchanged."""
        return [
            one._replace(value=_subtract(one.value, self._sent.get(_find_key(one))))
            for one in series
        ]

    def note_sent(self, series: Sequence[Series]) -> None:
        """Record that series were sent. `series`: their values before `subtract`."""
        self._sent = {_find_key(one): one.value for one in series if one.counts}


def _find_key(one: Series) -> _Key:
    return one.name, tuple(one.labels.items())


def _subtract(value: float | Histogram, sent: float | Histogram | None) -> float | Histogram:
    """Return the growth since the last transmission. If the current value is smaller, the counter
    was reset, and the current value is returned."""
    if sent is None:
        return value
    if isinstance(value, Histogram) and isinstance(sent, Histogram):
        counts = [now - before for now, before in zip(value.counts, sent.counts, strict=True)]
        if value.bounds != sent.bounds or min(counts) < 0:
            return value
        return Histogram(value.bounds, counts, value.total - sent.total)
    if isinstance(value, Histogram) or isinstance(sent, Histogram):
        return value
    return value - sent if value >= sent else value
