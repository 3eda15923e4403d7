"""A running broker reports every metric, and every field of `/health`."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.waiting import wait_for
from tieredstore.broker.send.sender import SendRequest
from tieredstore.contracts.message_store import GetRequest
from tieredstore.message.encoding import Message
from tieredstore.testing.broker import Broker

Samples = dict[str, list[dict[str, str]]]
QUEUE = {"topic", "queue_id"}
FILE = {"path", "file_type", "operation"}
TIER = {
    "rocketmq_tiered_store_api_latency": {"operation", "topic"},
    "rocketmq_tiered_store_provider_rpc_latency": FILE | {"success"},
    "rocketmq_tiered_store_provider_upload_bytes": FILE,
    "rocketmq_tiered_store_provider_download_bytes": FILE,
    "rocketmq_tiered_store_dispatch_behind": QUEUE | {"file_type"},
    "rocketmq_tiered_store_dispatch_latency": QUEUE | {"file_type"},
    "rocketmq_tiered_store_messages_dispatch_total": QUEUE | {"file_type"},
    "rocketmq_tiered_store_messages_out_total": {"topic", "group"},
    "rocketmq_tiered_store_read_ahead_cache_count": set[str](),
    "rocketmq_tiered_store_read_ahead_cache_bytes": set[str](),
    "rocketmq_tiered_store_read_ahead_cache_access_total": set[str](),
    "rocketmq_tiered_store_read_ahead_cache_hit_total": set[str](),
    "rocketmq_storage_size": {"topic", "file_type"},
    "rocketmq_storage_message_reserve_time": QUEUE,
}
"""Labels of each metric, without the base labels and the tier's labels."""
LOCAL = (
    "rocketmq_storage_size",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_storage_message_reserve_time",
)
SETTINGS = {"tieredStorageLevel": "FORCE", "tieredStoreGroupCommitTimeout": "3600000"}
"""Settings of a broker that uploads only when `flush_tier` is called."""
BASE = {"cluster", "node_type", "node_id"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Broker that has received, uploaded and read messages, and has a lagging group."""
    with Broker(properties=SETTINGS) as broker:
        for topic in ("orders", "leaving"):
            for number in range(3):
                message = Message.create(topic, b"x", queue_id=0, keys=[f"k{number}"])
                broker.run(broker.services.sender.send(SendRequest("p", message)))
        assert broker.flush_tier() == 6
        store = broker.services.store
        for topic in ("orders", "leaving"):
            assert len(store.get(GetRequest(topic, 0, 0, 32, group="g")).messages) == 3
            broker.call(partial(broker.services.offsets.commit_offset, "g", topic, 0, 1))
        yield broker


def ask(broker: Broker, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{broker.addresses['metrics']}{path}") as answer:
        return cast(bytes, answer.read())


def scrape(broker: Broker) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(ask(broker, "/metrics").decode()):
        for sample in family.samples:
            found.setdefault(sample.name.removesuffix("_bucket"), []).append(sample.labels)
    return found


def test_every_metric_of_a_tier_is_there_with_java_s_labels(broker: Broker) -> None:
    found = scrape(broker)
    for name, labels in TIER.items():
        tiered = [one for one in found[name] if one.get("storage_type") == "tiered"]
        assert tiered, name
        expected = BASE | {"storage_type", "storage_medium"} | labels
        assert all(expected <= one.keys() for one in tiered), (name, tiered[0])
        assert {one["storage_medium"] for one in tiered} == {"blob"}


def test_every_metric_of_the_local_store_is_there(broker: Broker) -> None:
    found = scrape(broker)
    for name in LOCAL:
        local = [one for one in found[name] if one.get("storage_type") == "local"]
        assert [one["storage_medium"] for one in local] == ["disk"], name


def test_lag_is_told_of_each_group(broker: Broker) -> None:
    found = {
        (sample.name, sample.labels["topic"]): sample.value
        for family in text_string_to_metric_families(ask(broker, "/metrics").decode())
        for sample in family.samples
        if sample.labels.get("consumer_group") == "g" and "lag" in sample.name
    }
    assert found["rocketmq_consumer_lag_messages", "orders"] == 2
    assert ("rocketmq_consumer_lag_latency", "orders") in found


def test_a_topic_that_was_deleted_has_no_series(broker: Broker) -> None:
    def has_series() -> list[str]:
        return [
            name
            for name, rows in scrape(broker).items()
            for labels in rows
            if "leaving" in (labels.get("topic", ""), *labels.get("path", "").split("/"))
            or "/leaving/" in labels.get("topic", "")
        ]

    assert len(set(has_series())) > 8
    cast(Any, broker.services.store).delete_topics({"leaving"})
    broker.call(lambda: broker.services.topics.delete_topic("leaving"))
    broker.call(lambda: broker.services.offsets.remove_topic("leaving"))
    assert has_series() == []


def test_health_tells_of_store_and_tier(broker: Broker) -> None:
    health = orjson.loads(ask(broker, "/health"))
    assert health["status"] == "up"
    tier = health["tier"]
    assert tier["fenced"] is None
    assert tier["last_scan_ms"] > 0
    assert (tier["behind_messages"], tier["behind_ms"]) == (0, 0)
    assert tier["hours_to_local_expiry"] is None
    names = {service["name"] for service in health["services"]}
    assert {"store", "reput", "tiered-dispatcher", "tiered-index", "PersistService"} <= names


def test_health_tells_how_long_the_disk_keeps_what_is_not_uploaded(broker: Broker) -> None:
    message = Message.create("orders", b"x", queue_id=0)
    broker.run(broker.services.sender.send(SendRequest("p", message)))

    def find_tier() -> dict[str, Any]:
        return cast(dict[str, Any], orjson.loads(ask(broker, "/health"))["tier"])

    wait_for(lambda: find_tier()["behind_messages"] == 1)  # once it is on the disk
    tier = find_tier()
    assert 0 < tier["hours_to_local_expiry"] <= 72
    broker.flush_tier()
