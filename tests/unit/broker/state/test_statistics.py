"""Tests of a broker's rates of puts, deliveries and messages sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.statistics import (
    BROKER_GETS,
    BROKER_PUTS,
    CLIENT_PUTS,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    STORE_PUTS,
    BrokerStatistics,
)
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.broker.state.traffic import MESSAGES_OUT, TrafficCounts
from tieredstore.clock import ManualClock
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.metrics import Metrics

CLUSTER = "cluster"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@dataclass
class World:
    """A store, its counts, and the rates computed from them."""

    store: DefaultMessageStore
    topics: TopicConfigManager
    traffic: TrafficCounts
    statistics: BrokerStatistics
    clock: ManualClock

    def put(self, topic: str, count: int, first: int = 0) -> None:
        put_all(self.store, [plain(topic, number=first + number) for number in range(count)])
        self.clock.advance(1000)  # values of the last second are used again

    def sample(self, later_ms: int = 10_000) -> None:
        self.clock.advance(later_ms)
        asyncio.run(self.statistics.sample())

    def sums(self, name: str, key: str) -> list[int] | None:
        """Return the growth of a count in a minute, an hour and a day."""
        windows = (MINUTE_MS, HOUR_MS, DAY_MS)
        rates = [self.statistics.find_rate(name, key, window_ms) for window_ms in windows]
        return [rate.sum for rate in rates if rate is not None] or None


@contextmanager
def world(root: Path) -> Iterator[World]:
    clock = ManualClock()
    topics = TopicConfigManager(root / "config", BrokerSettings(), clock)
    for topic in ("T", "Big"):
        topics.update_topic(TopicConfig(topic_name=topic))
    topics.add_system_topics()
    with running(small_config(root / "store"), clock) as store:
        traffic = TrafficCounts()
        statistics = BrokerStatistics(store, topics, traffic, CLUSTER, clock)
        yield World(store, topics, traffic, statistics, clock)


def test_puts_are_counted_by_topic_with_their_bytes(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        statistics = found.statistics
        assert found.sums("TOPIC_PUT_NUMS", "T") is None
        found.put("T", 20)
        # Java counts with each put: the rates are there before the first record.
        assert found.sums("TOPIC_PUT_NUMS", "T") == [20, 20, 20]
        assert statistics.topic_put_tps("T") == 2.0
        size_bytes = found.store.count_puts()["T"][1]
        rate = statistics.find_rate("TOPIC_PUT_SIZE", "T", MINUTE_MS)
        assert rate is not None
        assert (rate.sum, rate.average) == (size_bytes, size_bytes / 20)
        found.sample()
        assert found.sums("BROKER_PUT_NUMS", CLUSTER) == [20, 20, 20]
        for _ in range(6):
            found.sample()
        assert statistics.topic_put_tps("T") == 0
        assert found.sums("TOPIC_PUT_NUMS", "T") == [0, 20, 20]
        for _ in range(61):
            found.sample(60_000)
        assert found.sums("TOPIC_PUT_NUMS", "T") == [0, 0, 20]
        found.sample(DAY_MS)
        assert statistics.mornings[CLIENT_PUTS][1] == 20


def test_a_batch_counts_its_messages_as_one_request(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        found.put("Big", 30)
        found.traffic.batched["Big"] += 27  # three requests of ten messages
        rate = found.statistics.find_rate("TOPIC_PUT_NUMS", "Big", MINUTE_MS)
        assert rate is not None
        assert (rate.sum, rate.average) == (30, 10.0)


def test_deliveries_and_send_backs_are_counted_by_topic_and_group(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        found.traffic.add_deliveries("T", "G", 32, 3200)
        found.traffic.add_deliveries("T", "G", 8, 800)
        found.traffic.add_deliveries("SCHEDULE_TOPIC_XXXX", "G", 5, 500)
        found.traffic.send_backs["T", "G"] += 1
        assert found.sums("GROUP_GET_NUMS", "T@G") == [40, 40, 40]
        assert found.sums("GROUP_GET_SIZE", "T@G") == [4000, 4000, 4000]
        assert found.sums("SNDBCK_PUT_NUMS", "T@G") == [1, 1, 1]
        assert found.sums("GROUP_GET_NUMS", "T@H") is None
        assert found.sums("SNDBCK_PUT_NUMS", "T@H") is None
        rate = found.statistics.find_rate("GROUP_GET_NUMS", "T@G", MINUTE_MS)
        assert rate is not None
        assert rate.average == 20.0
        assert found.sums("BROKER_GET_NUMS", CLUSTER) == [45, 45, 45]
        assert found.sums("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER) == [40, 40, 40]
        assert found.statistics.total(BROKER_GETS) == 45


def test_totals_count_system_topics_as_java_does(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        found.put("T", 3)
        found.put("SCHEDULE_TOPIC_XXXX", 2)
        found.put(OP_TOPIC, 1)
        names = (STORE_PUTS, BROKER_PUTS, CLIENT_PUTS)
        assert [found.statistics.total(name) for name in names] == [6, 5, 3]
        found.store.delete_topics({"T"})
        found.sample()
        found.put("T", 2, first=3)
        assert [found.statistics.total(name) for name in names] == [9, 7, 5]


def test_what_is_deleted_is_forgotten_and_begins_anew(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        found.put("T", 20)
        found.traffic.add_deliveries("T", "G", 9, 900)
        found.traffic.add_deliveries("Big", "G", 1, 100)
        found.sample()
        found.store.wait_until_dispatched()
        found.topics.delete_topic("T")
        assert found.sums("TOPIC_PUT_NUMS", "T") is None
        assert found.sums("GROUP_GET_NUMS", "T@G") is None
        found.store.delete_topics({"T"})
        found.sample()
        assert found.sums("TOPIC_PUT_NUMS", "T") is None

        found.topics.update_topic(TopicConfig(topic_name="T"))
        found.put("T", 3, first=20)
        found.sample()
        assert found.sums("TOPIC_PUT_NUMS", "T") == [3, 3, 3]
        assert found.statistics.total(CLIENT_PUTS) == 23

        assert found.sums("GROUP_GET_NUMS", "Big@G") == [1, 1, 1]
        found.statistics.forget(group="G")
        assert found.sums("GROUP_GET_NUMS", "Big@G") is None
        assert found.statistics.total(BROKER_GETS) == 10


def test_rates_of_ten_seconds_a_minute_and_ten_minutes(tmp_path: Path) -> None:
    with world(tmp_path) as found:
        reads = [0]
        found.statistics.sources["reads"] = lambda: reads[0]
        for _ in range(70):
            reads[0] += 10
            found.sample(10_003)  # records are never exactly ten seconds apart
        reads[0] += 30
        found.sample(10_003)
        ten_s, minute, ten_minutes = found.statistics.list_tps("reads")
        assert round(ten_s, 2) == 3.0
        assert round(minute, 2) == round((5 * 10 + 30) / 60.018, 2)
        assert 1.0 < ten_minutes < 1.1


def test_the_metric_counts_retries_for_the_topic_of_the_request() -> None:
    metrics = Metrics()
    traffic = TrafficCounts(metrics)
    traffic.add_deliveries("%RETRY%g_T", "g", 2, 300, "T")
    traffic.add_deliveries("T", "g", 1, 100, "T")
    assert metrics.value(MESSAGES_OUT, topic="T", consumer_group="g") == 3
    assert traffic.deliveries["%RETRY%g_T", "g"].messages == 2
