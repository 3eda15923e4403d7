"""Tests of the expiry, deletion and administration of lite topics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consuming import split_records
from tests.kit.lite_lab import OK, Lab, run
from tests.kit.remoting import wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import ManualClock, RetentionClock, SystemClock
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import Unavailable

A = "%LMQ%$P$a"


def _is_gone(store: MessageStore, queue: str) -> bool:
    """Return whether a light queue has no messages. A deleted queue may keep its end offset."""
    end = store.get_max_offset_in_queue(queue, 0)
    return end <= store.get_min_offset_in_queue(queue, 0) or end <= 0


async def ask(lab: Lab, code: RequestCode, **fields: Any) -> Any:
    answer = await lab.client.request(code, fields)
    assert answer.code == OK, (answer.code, answer.remark)
    return json.loads(answer.body_bytes or b"{}")


async def consume(lab: Lab) -> None:
    """Send three messages to lite topic a and one to lite topic b. Acknowledge the first message of
    a."""
    await lab.send("a", b"a0", b"a1", b"a2")
    await lab.send("b", b"b0")
    await lab.subscribe("COMPLETE_ADD", "a")
    answer, _ = await lab.take(3)
    assert await lab.ack(answer, "a", 0) == OK


def test_silent_lite_topics_expire(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        services, store = lab.services, lab.services.store
        await consume(lab)
        expiry = services.lite_expiry
        now_ms = services.clock.now_ms()
        expiry.clock = RetentionClock(ManualClock(now_ms + 61_000))
        await expiry.expire()
        assert store.get_max_offset_in_queue(A, 0) == 3  # the broker has just started
        expiry.started_ms = 0
        services.settings.min_lite_ttl_ms = 0
        await expiry.expire()
        assert store.get_max_offset_in_queue(A, 0) == 3  # the topic has no expiration
        kind = {"message.type": "LITE", "lite.topic.expiration": "1"}
        services.topics.update_topic(TopicConfig(topic_name="P", attributes=kind))
        await expiry.expire()
        for queue in (A, "%LMQ%$P$b"):
            assert _is_gone(store, queue)
        assert services.offsets.query_offset("G", A, 0) is None
        assert services.subscriptions.count == 0
        # Lite topics are searched again only when one may expire.
        until_ms = expiry._until_ms
        await expiry.expire()
        assert expiry._until_ms == until_ms
        expiry.clock = RetentionClock(ManualClock(until_ms))
        await expiry.expire()
        assert expiry._until_ms == until_ms + 60_000
        # A later message makes the lite topic again.
        await lab.send("a", b"new0", b"new1")
        await lab.subscribe("COMPLETE_ADD", "a")
        await wait_for(lambda: not services.receive.state.find_queues("G", A))
        assert (await lab.take(2))[1] == [b"new0", b"new1"]

    run(tmp_path, test)


def test_c02_a_wall_clock_that_jumps_ahead_expires_no_lite_topic(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        services, expiry = lab.services, lab.services.lite_expiry
        await consume(lab)
        clock = ManualClock(services.clock.now_ms())
        expiry.clock = RetentionClock(clock)
        kind = {"message.type": "LITE", "lite.topic.expiration": "60"}
        services.topics.update_topic(TopicConfig(topic_name="P", attributes=kind))
        await expiry.expire()
        clock.set(clock.now_ms() + 10 * 365 * 86_400_000)
        clock.advance(1_800_000)
        await expiry.expire()
        assert not _is_gone(services.store, A)
        clock.advance(1_900_000)
        await expiry.expire()
        assert _is_gone(services.store, A)

    run(tmp_path, test)


def test_c01_a_start_with_a_clock_that_is_years_ahead_expires_no_lite_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(lab: Lab) -> None:
        services, expiry = lab.services, lab.services.lite_expiry
        kind = {"message.type": "LITE", "lite.topic.expiration": "60"}
        services.topics.update_topic(TopicConfig(topic_name="P", attributes=kind))
        expiry.started_ms = 0
        await expiry.expire()
        assert not _is_gone(services.store, A)

    run(tmp_path, consume)
    now_ms = SystemClock.now_ms
    years_ms = 10 * 365 * 86_400_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms(self) + years_ms)
    run(tmp_path, look)


def test_the_lite_topics_of_a_deleted_parent_are_gone(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        await ask(lab, RequestCode.DELETE_TOPIC_IN_BROKER, topic="P")
        assert _is_gone(lab.services.store, A)
        assert lab.services.offsets.query_offset("G", A, 0) is None
        assert lab.services.subscriptions.count == 0

    run(tmp_path, test)


def test_l15_the_lite_topics_are_gone_after_the_type_of_their_parent_was_changed(
    tmp_path: Path,
) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        lab.services.topics.update_topic(TopicConfig(topic_name="P"))
        await ask(lab, RequestCode.DELETE_TOPIC_IN_BROKER, topic="P")
        assert _is_gone(lab.services.store, A)

    run(tmp_path, test)


def test_l15_a_kill_within_a_deletion_leaves_no_lite_topic_without_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        store, topics = lab.services.store, lab.services.topics
        delete, loop = store.delete_topics, asyncio.get_running_loop()
        steps: list[tuple[set[str], bool]] = []

        def note(names: set[str]) -> int:
            asyncio.run_coroutine_threadsafe(topics.persist(always=True), loop).result(10)
            steps.append((names, "P" in json.loads(topics.path.read_bytes())["topicConfigTable"]))
            return delete(names)

        monkeypatch.setattr(store, "delete_topics", note)
        await ask(lab, RequestCode.DELETE_TOPIC_IN_BROKER, topic="P")
        assert steps == [({A, "%LMQ%$P$b"}, True), ({"P"}, True)]
        assert "P" not in json.loads(topics.path.read_bytes())["topicConfigTable"]

    run(tmp_path, test)


def test_l15_a_topic_whose_deletion_fails_can_be_deleted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        store = lab.services.store

        def fail(_: set[str]) -> int:
            raise Unavailable("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(store, "delete_topics", fail)
            answer = await lab.client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "P"})
            assert answer.code != OK
        assert lab.services.topics.find_topic("P") is not None
        await ask(lab, RequestCode.DELETE_TOPIC_IN_BROKER, topic="P")
        assert lab.services.topics.find_topic("P") is None
        assert _is_gone(store, A)

    run(tmp_path, test)


def test_lite_topics_without_a_parent_are_unused(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        store = lab.services.store
        await ask(lab, RequestCode.CLEAN_UNUSED_TOPIC)
        assert store.get_max_offset_in_queue(A, 0) == 3
        lab.services.topics.delete_topic("P")  # as an earlier version did, before a kill
        await ask(lab, RequestCode.CLEAN_UNUSED_TOPIC)
        assert _is_gone(store, A)

    run(tmp_path, test)


def test_admin_requests_are_answered_as_by_java(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        found = await ask(lab, RequestCode.GET_BROKER_LITE_INFO)
        assert found["currentLmqNum"] == 2
        assert found["liteSubscriptionCount"] == found["orderInfoCount"] == 1
        assert found["topicMeta"] == {"P": -1}
        assert found["groupMeta"] == {"P": ["G"]}
        found = await ask(lab, RequestCode.GET_PARENT_TOPIC_INFO, topic="P")
        expected = {"topic": "P", "ttl": -1, "groups": ["G"], "lmqNum": 2, "liteTopicCount": 2}
        assert found == expected
        place = {"parentTopic": "P", "liteTopic": "a"}
        found = await ask(lab, RequestCode.GET_LITE_TOPIC_INFO, **place)
        assert found["topicOffset"].pop("lastUpdateTimestamp") > 0
        subscriber = [{"clientId": "C", "group": "G"}]
        assert found == {
            **place,
            "subscriber": subscriber,
            "topicOffset": {"minOffset": 0, "maxOffset": 3},
            "shardingToBroker": True,
        }
        client = {"parentTopic": "P", "group": "G", "clientId": "C"}
        found = await ask(lab, RequestCode.GET_LITE_CLIENT_INFO, **client, maxCount=9)
        assert (found["liteTopicCount"], found["liteTopicSet"]) == (1, [A])
        client["clientId"] = "D"
        found = await ask(lab, RequestCode.GET_LITE_CLIENT_INFO, **client)
        assert (found["liteTopicCount"], found["liteTopicSet"]) == (-1, None)
        found = await ask(lab, RequestCode.GET_LITE_GROUP_INFO, group="G", liteTopic="a", topK=0)
        assert found["totalLagCount"] == 2
        wrapper = found["liteTopicOffsetWrapper"]
        assert (wrapper["brokerOffset"], wrapper["consumerOffset"]) == (3, 1)
        found = await ask(lab, RequestCode.GET_LITE_GROUP_INFO, group="G", liteTopic="x", topK=0)
        assert found["totalLagCount"] == -1
        found = await ask(lab, RequestCode.GET_LITE_GROUP_INFO, group="G", topK=5)
        assert [(one["liteTopic"], one["lagCount"]) for one in found["lagCountTopK"]] == [("a", 2)]
        await ask(lab, RequestCode.TRIGGER_LITE_DISPATCH, group="G", clientId="C")

    run(tmp_path, test)


def test_admin_requests_of_what_is_not_lite_are_refused(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        lab.services.topics.update_topic(TopicConfig(topic_name="N"))
        lab.services.groups.update_group(SubscriptionGroupConfig(group_name="H"))
        illegal = ResponseCode.INVALID_PARAMETER
        for code, fields, expected in (
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "N"}, illegal),
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "X"}, ResponseCode.TOPIC_NOT_EXIST),
            (RequestCode.GET_LITE_CLIENT_INFO, {"parentTopic": "P", "group": "H"}, illegal),
            (RequestCode.GET_LITE_GROUP_INFO, {"group": "H"}, illegal),
            (
                RequestCode.TRIGGER_LITE_DISPATCH,
                {"group": "X"},
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            ),
        ):
            answer = await lab.client.request(code, fields)
            assert answer.code == expected, (code, answer.remark)

    run(tmp_path, test)


def test_a_pull_and_a_search_may_name_a_lite_topic(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await consume(lab)
        queue = {"topic": "P", "queueId": 0, "liteTopic": "a"}
        pull = {**queue, "consumerGroup": "G", "queueOffset": 1, "sysFlag": 4, "subscription": "*"}
        answer = await lab.client.request(RequestCode.PULL_MESSAGE, pull)
        assert [bytes(one.body) for one in split_records(answer.body_bytes)] == [b"a1", b"a2"]
        for lite_topic, time_ms, expected in (("a", 1 << 50, "3"), ("a", 0, "0"), ("x", 0, "0")):
            fields = queue | {"liteTopic": lite_topic, "timestamp": time_ms}
            answer = await lab.client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
            assert answer.ext_fields["offset"] == expected

    run(tmp_path, test)
