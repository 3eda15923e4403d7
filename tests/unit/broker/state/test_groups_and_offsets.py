"""Tests of the tables of groups and of group offsets."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.errors import Invalid


def test_a_group_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    groups = SubscriptionGroupManager(tmp_path, BrokerSettings())
    assert groups.find_group("G") == SubscriptionGroupConfig(group_name="G")
    assert list(groups.list_groups()) == ["G"]
    for name in ("a b", " ", "g" * 121):
        assert groups.find_group(name) is None
    assert groups.delete_group("G")
    assert not groups.delete_group("G")


def test_a_group_is_not_made_where_that_is_not_allowed(tmp_path: Path) -> None:
    settings = BrokerSettings(auto_create_subscription_group=False)
    groups = SubscriptionGroupManager(tmp_path, settings)
    assert groups.find_group("G") is None
    groups.update_group(SubscriptionGroupConfig(group_name="G"))
    assert groups.find_group("G") is not None


def test_what_java_wrote_of_groups_is_kept(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "subscriptionGroup.json"
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000}}
        path.write_text(
            json.dumps(
                {
                    "forbiddenTable": {"G": {"T": 1}},
                    "subscriptionGroupTable": {
                        "G": {"groupName": "G", "groupRetryPolicy": policy, "brokerId": 2}
                    },
                }
            )
        )
        groups = SubscriptionGroupManager(tmp_path, BrokerSettings())
        await groups.load()
        groups.find_group("H")
        await groups.persist()
        table = json.loads(path.read_bytes())
        assert table["forbiddenTable"] == {"G": {"T": 1}}
        assert table["subscriptionGroupTable"]["G"]["groupRetryPolicy"] == policy
        assert table["subscriptionGroupTable"]["G"]["brokerId"] == 2

    asyncio.run(run())


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsetManager:
    """A table with offsets of two groups in two topics."""
    offsets = ConsumerOffsetManager(tmp_path)
    for group, topic, queue_id, offset in (
        ("G", "T", 0, 5),
        ("G", "T", 1, 6),
        ("G", "U", 0, 7),
        ("H", "T", 0, 8),
    ):
        offsets.commit_offset(group, topic, queue_id, offset)
    return offsets


def test_offsets_are_found_by_group_topic_and_queue(offsets: ConsumerOffsetManager) -> None:
    assert offsets.query_offset("G", "T", 1) == 6
    assert offsets.query_offset("G", "T", 2) is None
    assert offsets.query_offset("nobody", "T", 0) is None
    assert offsets.list_offsets("G", "T") == {0: 5, 1: 6}
    assert offsets.list_topics("G") == {"T", "U"}
    assert offsets.list_groups("T") == {"G", "H"}
    offsets.commit_offset("G", "T", 0, 1)  # a reset
    assert offsets.query_offset("G", "T", 0) == 1


def test_offsets_of_a_topic_or_group_are_removed(offsets: ConsumerOffsetManager) -> None:
    offsets.remove_topic("T")
    assert offsets.list_keys() == [("G", "U")]
    offsets.remove_group("G")
    assert offsets.list_keys() == []


def test_with_light_queues_offsets_are_where_java_has_them(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "lmqConsumerOffset.json"
        path.write_text(
            '{"lmqOffsetTable":{"%LMQ%x@G":7},"offsetTable":{"T@G":{0:5}},"pullOffsetTable":{}}'
        )
        offsets = ConsumerOffsetManager(tmp_path, has_lmq=True)
        await offsets.load()
        assert offsets.query_offset("G", "%LMQ%x", 0) == 7
        assert offsets.query_offset("G", "T", 0) == 5
        offsets.commit_offset("G", "%LMQ%x", 0, 8)
        await offsets.persist()
        table = json.loads(path.read_bytes())
        assert table["lmqOffsetTable"] == {"%LMQ%x@G": 8}
        assert table["offsetTable"] == {"T@G": {"0": 5}}
        assert not (tmp_path / "consumerOffset.json").exists()

    asyncio.run(run())


@pytest.mark.parametrize("has_lmq", [True, False])
def test_a_change_of_enable_lmq_keeps_the_offsets(tmp_path: Path, has_lmq: bool) -> None:
    async def run(number: int) -> None:
        offsets = ConsumerOffsetManager(tmp_path, has_lmq=has_lmq ^ (number % 2 > 0))
        await offsets.load()
        assert offsets.query_offset("G", "T", 0) == (number or None)
        offsets.commit_offset("G", "T", 0, number + 1)
        await offsets.persist()

    for number in range(3):
        asyncio.run(run(number))
        for path in tmp_path.iterdir():  # an hour passes
            time_s = path.stat().st_mtime - 3600
            os.utime(path, (time_s, time_s))


@pytest.mark.parametrize(
    ("group", "topic"),
    [
        ("G", "%LMQ%p2p%GID@@@device"),
        ("%LMQ%GID@@@device", "%LMQ%p2p%GID@@@device"),
        ("%LMQ%GID@@@device", "T"),
        ("G", "T"),
    ],
)
def test_i80_the_offset_of_a_name_with_an_at_sign_is_kept(
    tmp_path: Path, group: str, topic: str
) -> None:
    async def run() -> None:
        offsets = ConsumerOffsetManager(tmp_path, has_lmq=True)
        offsets.commit_offset(group, topic, 0, 7)
        await offsets.persist()
        later = ConsumerOffsetManager(tmp_path, has_lmq=True)
        await later.load()
        assert later.query_offset(group, topic, 0) == 7
        assert later.list_keys() == [(group, topic)]

    asyncio.run(run())


def test_s30_an_offset_that_its_file_would_give_to_another_group_is_refused(
    offsets: ConsumerOffsetManager,
) -> None:
    offsets.check_room("%LMQ%b@g", "%LMQ%a")
    with pytest.raises(Invalid, match="expected names without @"):
        offsets.check_room("g", "%LMQ%a@%LMQ%b")  # in the file it is the pair above
