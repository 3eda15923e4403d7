"""Rates of a broker come from the ends of queues and the offsets of groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.statistics import (
    BROKER_GETS,
    BROKER_PUTS,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    BrokerStatistics,
)
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.clock import ManualClock


def test_what_comes_and_goes_between_two_samples_is_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    topics = TopicConfigManager(tmp_path / "config", BrokerSettings(), clock)
    offsets = ConsumerOffsetManager(tmp_path / "config", clock)
    topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=2))
    with running(small_config(tmp_path / "store"), clock) as store:
        statistics = BrokerStatistics(store, topics, offsets, clock)

        def sample(later_ms: int = 10_000) -> None:
            clock.advance(later_ms)
            asyncio.run(statistics.sample())

        put_all(store, [plain(number=number) for number in range(5)])
        offsets.commit_offset("G", "T", 0, 1)
        sample()  # what is there at the first sample is from before
        assert statistics.find_rate("TOPIC_PUT_NUMS", "T", MINUTE_MS) is None
        assert statistics.total(BROKER_PUTS) == 0

        put_all(store, [plain(queue_id=number % 2, number=number) for number in range(20)])
        topics.update_topic(TopicConfig(topic_name="New"))
        put_all(store, [plain("New", number=number) for number in range(3)])
        offsets.commit_offset("G", "T", 0, 5)
        sample()
        assert statistics.topic_put_tps("T") == 2.0
        assert statistics.topic_put_tps("New") == 0.3
        assert statistics.group_get_tps("G", "T") == 0.4
        assert statistics.total(BROKER_PUTS) == 23
        assert statistics.total(BROKER_GETS) == 4

        offsets.commit_offset("G", "T", 0, 0)  # a reset takes nothing away
        for _ in range(6):
            sample()
        assert statistics.topic_put_tps("T") == 0
        hour = statistics.find_rate("TOPIC_PUT_NUMS", "T", HOUR_MS)
        assert hour is not None
        assert hour.sum == 20
        for _ in range(60):
            sample(60_000)
        hour = statistics.find_rate("TOPIC_PUT_NUMS", "T", HOUR_MS)
        day = statistics.find_rate("TOPIC_PUT_NUMS", "T", DAY_MS)
        assert hour is not None
        assert day is not None
        assert (hour.sum, day.sum) == (0, 20)
        sample(DAY_MS)
        assert statistics.mornings(BROKER_PUTS)[1] == 23


def test_what_is_deleted_is_forgotten_and_begins_anew_where_it_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    topics = TopicConfigManager(tmp_path / "config", BrokerSettings(), clock)
    offsets = ConsumerOffsetManager(tmp_path / "config", clock)
    with running(small_config(tmp_path / "store"), clock) as store:
        statistics = BrokerStatistics(store, topics, offsets, clock)

        def sample() -> None:
            clock.advance(10_000)
            asyncio.run(statistics.sample())

        sample()
        topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=1))
        put_all(store, [plain(number=number) for number in range(20)])
        offsets.commit_offset("G", "T", 0, 5)
        sample()
        offsets.commit_offset("G", "T", 0, 9)
        sample()
        assert statistics.topic_put_tps("T") > 0
        assert statistics.group_get_tps("G", "T") > 0

        store.wait_until_dispatched()
        topics.delete_topic("T")
        offsets.remove_topic("T")
        store.delete_topics({"T"})
        sample()
        assert statistics.find_rate("TOPIC_PUT_NUMS", "T", MINUTE_MS) is None
        assert statistics.find_rate("GROUP_GET_NUMS", "T@G", MINUTE_MS) is None

        topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=1))
        put_all(store, [plain(number=number) for number in range(20, 23)])
        sample()
        found = statistics.find_rate("TOPIC_PUT_NUMS", "T", MINUTE_MS)
        assert found is not None
        assert found.sum == 3
        assert statistics.total(BROKER_PUTS) == 23
