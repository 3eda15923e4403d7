"""Metrics are exported over OTLP to a receiver in the same process."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2

from tests.kit.waiting import wait_for
from tieredstore.broker.operations.exporter import OtlpExporter, Series, make_base_labels
from tieredstore.broker.settings import BrokerSettings, list_settings
from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid, Unavailable
from tieredstore.metrics import Histogram
from tieredstore.testing.broker import Broker

Request = metrics_service_pb2.ExportMetricsServiceRequest
DELTA = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA


class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Records all requests, and the headers of the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.headers: dict[str, str] = {}
        self.metrics: dict[str, object] = {}
        self.is_away = False

    def Export(self, request: Request, context: grpc.ServicerContext) -> object:
        if self.is_away:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "away")
        with self._lock:
            self.headers = {name: str(value) for name, value in context.invocation_metadata()}
            [resource] = request.resource_metrics
            [scope] = resource.scope_metrics
            self.metrics = {metric.name: metric for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    found = Receiver()
    server = grpc.server(ThreadPoolExecutor(1))
    add: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add(found, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found, f"http://127.0.0.1:{port}"
    server.stop(None)


def make_exporter(target: str, header: str = "", *, in_delta: bool = False) -> OtlpExporter:
    return OtlpExporter(
        BrokerSettings(
            metrics_in_delta=in_delta,
            metrics_grpc_exporter_target=target,
            metrics_grpc_exporter_header=header,
            metric_grpc_exporter_timeout_ms=200 if not header else 10_000,
        )
    )


def labels_of(point: object) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}  # type: ignore[attr-defined]


def test_counters_gauges_and_histograms_arrive_as_such(receiver: tuple[Receiver, str]) -> None:
    found, target = receiver
    exporter = make_exporter(target, "X-Key: secret, other:1")
    exporter.send(
        [
            Series("puts_total", {"topic": "a"}, 3),
            Series("puts_total", {"topic": "b"}, 4),
            Series("lag", {"topic": "a"}, 7),
            Series("latency", {"topic": "a"}, Histogram((1, 5), [2, 0, 1], 12.0)),
        ]
    )
    exporter.close()
    assert (found.headers["x-key"], found.headers["other"]) == ("secret", "1")
    puts, lag, latency = (found.metrics[name] for name in ("puts_total", "lag", "latency"))
    assert puts.sum.is_monotonic  # type: ignore[attr-defined]
    points = puts.sum.data_points  # type: ignore[attr-defined]
    assert [(labels_of(p)["topic"], p.as_int or p.as_double) for p in points] == [
        ("a", 3),
        ("b", 4),
    ]
    [point] = lag.gauge.data_points  # type: ignore[attr-defined]
    assert point.as_int or point.as_double == 7
    [point] = latency.histogram.data_points  # type: ignore[attr-defined]
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([2, 0, 1], [1, 5])
    assert (point.count, point.sum) == (3, 12)


def test_in_deltas_each_growth_is_sent_once_whatever_the_receiver_loses(
    receiver: tuple[Receiver, str],
) -> None:
    found, target = receiver
    exporter = make_exporter(target, "a:b", in_delta=True)

    def send(puts: int, lag: int, counts: list[int]) -> tuple[float, float, list[int]]:
        labels = {"topic": "a"}
        exporter.send(
            [
                Series("puts_total", labels, puts),
                Series("lag", labels, lag),
                Series("latency", labels, Histogram((1, 5), counts, float(sum(counts)))),
            ]
        )
        metrics: dict[str, Any] = dict(found.metrics)
        assert metrics["puts_total"].sum.aggregation_temporality == DELTA
        assert metrics["latency"].histogram.aggregation_temporality == DELTA
        [put_point] = metrics["puts_total"].sum.data_points
        [lag_point] = metrics["lag"].gauge.data_points
        [latency_point] = metrics["latency"].histogram.data_points
        values = [point.as_int or point.as_double for point in (put_point, lag_point)]
        assert latency_point.sum == latency_point.count == sum(latency_point.bucket_counts)
        return values[0], values[1], list(latency_point.bucket_counts)

    assert send(3, 7, [2, 0, 1]) == (3, 7, [2, 0, 1])
    assert send(5, 7, [2, 1, 1]) == (2, 7, [0, 1, 0])
    found.is_away = True
    with pytest.raises(Unavailable):
        send(6, 8, [3, 1, 1])
    found.is_away = False
    assert send(9, 9, [3, 1, 2]) == (4, 9, [1, 0, 1])
    assert send(1, 9, [1, 0, 0]) == (1, 9, [1, 0, 0])  # it has begun again
    exporter.close()


def test_a_broker_sends_what_a_scrape_would_get(receiver: tuple[Receiver, str]) -> None:
    found, target = receiver
    properties = {
        "metricsExporterType": "OTLP_GRPC",
        "metricsGrpcExporterTarget": target,
        "metricGrpcExporterIntervalInMills": "50",
        "metricsLabel": "site:north, node_id:nobody",
        "metricsInDelta": "true",
    }
    with Broker(properties=properties) as broker:
        assert broker.addresses["metrics"]  # /health is served all the same
        wait_for(lambda: "rocketmq_topic_number" in found.metrics)
        [point] = found.metrics["rocketmq_topic_number"].gauge.data_points  # type: ignore[attr-defined]
        labels = labels_of(point)
        assert labels["node_type"] == "broker"
        assert labels["cluster"] == "DefaultCluster"
        assert (labels["site"], labels["aggregation"]) == ("north", "delta")
        assert labels["node_id"] == broker.services.settings.broker_name
        with urllib.request.urlopen(f"http://{broker.addresses['metrics']}/metrics") as page:
            text = page.read().decode()
        assert 'site="north"' in text
        assert 'aggregation="delta"' in text


@pytest.mark.parametrize("label", ["site", "a-b:c", "__a:b", "1a:b"])
def test_a_label_that_is_none_is_refused(label: str) -> None:
    with pytest.raises(Invalid, match="metricsLabel"):
        make_base_labels(BrokerSettings(metrics_label=label))


def test_a_receiver_that_is_away_is_told_and_tried_again() -> None:
    exporter = make_exporter("http://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            exporter.send([Series("lag", {}, 1)])
    exporter.close()


@pytest.mark.parametrize(("target", "header"), [("", ""), ("http://h:1", "no pair")])
def test_what_cannot_work_is_refused(target: str, header: str) -> None:
    with pytest.raises(Invalid):
        make_exporter(target, header)


def test_headers_are_not_shown() -> None:
    settings = BrokerSettings(metrics_grpc_exporter_header="Authorization:Bearer x")
    assert "Bearer" not in str(list_settings(settings, StoreConfig()))
