"""Metrics sent by OTLP over gRPC (Java's metricsExporterType=OTLP_GRPC), by OpenTelemetry's SDK.

What is sent is what a scrape of `/metrics` gets: the same names, labels and limit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.operations.deltas import Deltas
from tieredstore.broker.operations.exporter import Series, parse_pairs
from tieredstore.errors import Invalid, Unavailable, make_missing_error
from tieredstore.metrics import Histogram

if TYPE_CHECKING:
    from tieredstore.broker.settings import BrokerSettings

SCOPE: Final = "broker-meter"
"""The name of Java's meter."""


class OtlpExporter:
    """Sends series to `metricsGrpcExporterTarget`. Calls block."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raises Invalid without a target, for headers that are none, and when the extra `otel` is
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
        # What fails is told once, by who calls.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._exporter: Any = metric_exporter.OTLPMetricExporter(
            endpoint=self._target if "://" in self._target else f"https://{self._target}",
            headers=headers or None,
            timeout=settings.metric_grpc_exporter_timeout_ms / 1000,
        )
        self._begin_ns = time.time_ns()
        self._deltas = Deltas() if settings.metrics_in_delta else None

    def send(self, series: Sequence[Series]) -> None:
        """Send series, once. Raises Unavailable when the receiver has not taken them."""
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
            raise Unavailable(f"{self._target}: has not taken the metrics")
        if self._deltas is not None:
            self._deltas.note_sent(series)
            self._begin_ns = now_ns

    def close(self) -> None:
        """Close the connection; what is being sent is given up. Idempotent."""
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
                    min=-math.inf,  # not known
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
