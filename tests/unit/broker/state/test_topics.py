"""Tests of the topic table: its initial content, and topics created by messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.errors import Busy, Invalid, Unavailable

SETTINGS = {"broker_name": "broker-a", "broker_cluster_name": "cluster"}


def made(folder: Path, **changes: object) -> TopicConfigManager:
    """Return a table with the broker's own topics."""
    topics = TopicConfigManager(folder, BrokerSettings(**{**SETTINGS, **changes}))  # type: ignore[arg-type]
    topics.add_system_topics()
    return topics


def test_the_broker_s_own_topics_are_java_s(tmp_path: Path) -> None:
    found = {
        name: (config.write_queue_nums, config.perm)
        for name, config in made(tmp_path).list_topics().items()
    }
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "cluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "cluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_cluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "TRANS_CHECK_MAX_TIME_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }


def test_settings_say_which_of_them_there_are(tmp_path: Path) -> None:
    topics = made(
        tmp_path,
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
        msg_trace_topic_name="traces",
    ).list_topics()
    assert "TBW102" not in topics
    assert (topics["cluster"].perm, topics["broker-a"].perm) == (1, 1)
    assert topics["traces"].write_queue_nums == 1


@pytest.mark.parametrize(("asked", "queues"), [(4, 4), (8, 8), (40, 8), (-1, 0)])
def test_a_send_makes_a_topic_after_its_default_topic(
    tmp_path: Path, asked: int, queues: int
) -> None:
    topics = made(tmp_path)
    heard: list[str] = []
    topics.add_listener(heard.append)
    config = topics.create_on_send("new", "TBW102", asked, sys_flag=2)
    assert config == TopicConfig(
        topic_name="new", read_queue_nums=queues, write_queue_nums=queues, perm=6, topic_sys_flag=2
    )
    assert topics.create_on_send("new", "nobody", 1) is config
    assert heard == ["new"]


def test_a_send_makes_no_topic_where_that_is_not_allowed(tmp_path: Path) -> None:
    topics = made(tmp_path)
    assert topics.create_on_send("new", "nobody", 4) is None
    topics.update_topic(TopicConfig(topic_name="plain", perm=6))
    assert topics.create_on_send("new", "plain", 4) is None
    with pytest.raises(Invalid, match="illegal characters"):
        topics.create_on_send("a/b", "TBW102", 4)
    without = made(tmp_path, auto_create_topic_enable=False)
    assert without.create_on_send("new", "TBW102", 4) is None
    assert "new" not in topics.list_topics()


def test_a_retry_topic_is_made_once(tmp_path: Path) -> None:
    topics = made(tmp_path)
    config = topics.create_on_send_back("%RETRY%G", 1)
    assert (config.write_queue_nums, config.perm) == (1, 6)
    assert topics.create_on_send_back("%RETRY%G", 5) is config


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        topics = made(tmp_path)
        topics.update_topic(TopicConfig(topic_name="T", attributes={"reserve.time": "5"}))
        await topics.persist()
        again = TopicConfigManager(tmp_path, BrokerSettings())
        await again.load()
        assert again.list_topics() == topics.list_topics()
        assert again.data_version == topics.data_version
        assert not again.is_changed

    asyncio.run(run())


@pytest.mark.parametrize("name", ["topics", "metadata", "rdb"])
def test_a_configuration_in_a_database_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(Invalid, match=f"{name}: expected the broker's configuration in JSON"):
        asyncio.run(TopicConfigManager(tmp_path, BrokerSettings()).load())


@pytest.mark.parametrize("first_fails", [False, True])
@pytest.mark.parametrize("second_fails", [False, True])
@pytest.mark.parametrize("first_ends_first", [False, True])
def test_two_deletions_at_once_leave_the_topic_only_if_both_fail(
    tmp_path: Path, first_fails: bool, second_fails: bool, first_ends_first: bool
) -> None:
    topics = made(tmp_path)
    topics.update_topic(TopicConfig(topic_name="T"))
    blocks = []
    for fails in (first_fails, second_fails):
        block = topics.deleting({"T"})
        block.__enter__()
        blocks.append((block, fails))
    assert topics.find_topic("T") is None
    assert b'"T"' in topics.encode()
    with pytest.raises(Busy):
        topics.update_topic(TopicConfig(topic_name="T"))
    for block, fails in blocks if first_ends_first else blocks[::-1]:
        error = Unavailable("no") if fails else None
        block.__exit__(type(error) if error else None, error, None)
    assert (topics.find_topic("T") is not None) == (first_fails and second_fails)
    assert (b'"T"' in topics.encode()) == (first_fails and second_fails)
    topics.update_topic(TopicConfig(topic_name="T"))
