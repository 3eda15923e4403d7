"""The broker is killed while consumers pop and acknowledge over remoting, from queues and from lite
topics. The checker finds no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.consuming import TOPIC
from tests.kit.queue_checker.checker import check_history
from tests.kit.queue_checker.loads import Load
from tests.kit.queue_checker.pops import LiteLoad, PopLoad, read_topic
from tests.kit.queue_checker.run import run_loads
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "defaultTopicQueueNums": "4"}


@pytest.mark.parametrize(
    ("kills", "between_s"),
    [
        pytest.param(3, 3.0, id="some-seconds"),
        # slow: five minutes
        pytest.param(60, 4.0, id="five-minutes", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_and_what_is_left_comes_again(
    tmp_path: Path, kills: int, between_s: float
) -> None:
    _write_config(tmp_path / "store" / "config")
    loads: list[Load] = [PopLoad(seed=29), LiteLoad(seed=30)]
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        address = f"127.0.0.1:{broker.ports['listenPort']}"
        histories = run_loads(
            loads, lambda topic: read_topic(address, topic), broker, kills, between_s
        )
        for topic, history in histories.items():
            assert (topic, check_history(history)[:20]) == (topic, []), broker.log()
            assert len(history.acknowledged) > 20 * kills  # a loaded machine sends little
            assert {one.is_done for one in history.pops} >= {True, False}
        assert broker.stop() == 0


def _write_config(folder: Path) -> None:
    """Write the settings of a topic with four queues, of a parent of lite topics, and of the groups
    that consume them."""
    folder.mkdir(parents=True)
    settings = load_broker_settings({}, "killed")
    topics = TopicConfigManager(folder, settings)
    kind = {"message.type": "LITE"}
    topics.update_topic(TopicConfig(topic_name=LiteLoad.topic, attributes=kind))
    topics.update_topic(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
    (folder / "topics.json").write_bytes(topics.encode())
    groups = SubscriptionGroupManager(folder, settings)
    bound = {"lite.bind.topic": LiteLoad.topic}
    groups.update_group(SubscriptionGroupConfig(group_name=LiteLoad.group, attributes=bound))
    groups.update_group(SubscriptionGroupConfig(group_name=PopLoad.group))
    (folder / "subscriptionGroup.json").write_bytes(groups.encode())
