"""Metrics are exported in the Prometheus format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tieredstore.broker.operations.exporter import LEFT_OUT, MetricsExporter
from tieredstore.metrics import Metrics


def scrape(
    exporter: MetricsExporter, *sources: Metrics
) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(exporter.render(sources).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


BASE = {"cluster": "c", "node_type": "broker", "node_id": "b"}
TIERED = BASE | {"storage_type": "tiered", "storage_medium": "blob"}


def test_names_and_labels_are_java_s() -> None:
    metrics = Metrics()
    metrics.count("rocketmq_messages_in_total", 3, topic="orders")
    metrics.gauge("rocketmq_tiered_store_dispatch_behind", 7, topic="orders", queue_id=1)
    metrics.observe("rocketmq_tiered_store_api_latency", 4, (1, 5), operation="get_message")
    metrics.observe("rocketmq_tiered_store_api_latency", 9, (1, 5), operation="get_message")
    found = scrape(MetricsExporter(BASE), metrics)
    assert found["rocketmq_messages_in_total"] == [(BASE | {"topic": "orders"}, 3)]
    behind = TIERED | {"topic": "orders", "queue_id": "1"}
    assert found["rocketmq_tiered_store_dispatch_behind"] == [(behind, 7)]
    latency = TIERED | {"operation": "get_message"}
    assert found["rocketmq_tiered_store_api_latency_bucket"] == [
        (latency | {"le": "1.0"}, 0),
        (latency | {"le": "5.0"}, 1),
        (latency | {"le": "+Inf"}, 2),
    ]
    assert found["rocketmq_tiered_store_api_latency_sum"] == [(latency, 13)]


def test_a_series_that_two_registries_have_is_rendered_once() -> None:
    first, second = Metrics(), Metrics()
    first.gauge("g", 1, topic="a")
    second.gauge("g", 2, topic="a")
    second.gauge("g", 3, topic="b")
    found = scrape(MetricsExporter(BASE), first, second)
    assert [(labels["topic"], value) for labels, value in found["g"]] == [("a", 1), ("b", 3)]


def test_series_beyond_the_limit_are_counted_not_rendered() -> None:
    metrics = Metrics()
    for number in range(10):
        metrics.gauge("g", number, topic=f"t{number}")
    metrics.gauge("h", 1)
    found = scrape(MetricsExporter(BASE, max_series=4), metrics)
    assert len(found["g"]) == 4
    assert "h" not in found
    assert found[LEFT_OUT] == [({}, 7)]


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.gauge("g", 1, topic='a"b\\c\nd')
    [(labels, _)] = scrape(MetricsExporter(BASE), metrics)["g"]
    assert labels["topic"] == 'a"b\\c\nd'
