"""Tests of lite topic consumers over remoting. Replies equal those of Java's broker 5.5.0."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consuming import split_records
from tests.kit.lite_lab import NONE, OK, SETTINGS, Lab, open_lab, run
from tests.kit.power_cut.load import send
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.testing import Broker


def test_a_lite_topic_is_delivered_in_order_and_locked(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.send("a", b"a0", b"a1")
        assert (await lab.subscribe("COMPLETE_ADD", "a", "b")).code == OK
        answer, bodies = await lab.take(2)
        assert bodies == [b"a0", b"a1"]
        assert answer.ext_fields["orderCountInfo"] == "0;0"
        assert answer.ext_fields["reviveQid"] == "999"
        assert [one.topic for one in split_records(answer.body_bytes)] == ["P", "P"]
        await lab.send("a", b"a2")
        await lab.pop(NONE)  # locked
        waiting = asyncio.create_task(lab.take(1))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert await lab.ack(answer, "a", 0) == OK
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert await lab.ack(answer, "a", 1) == OK
        assert (await waiting)[1] == [b"a2"]
        await lab.send("b", b"b0")
        assert (await lab.take(1))[1] == [b"b0"]
        assert lab.services.offsets.query_offset("G", "%LMQ%$P$a", 0) == 2

    run(tmp_path, test)


def test_a_changed_time_delivers_again_and_a_suspension_does_not_count(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.send("a", b"a0", b"a1", b"a2")
        await lab.subscribe("PARTIAL_ADD", "a")
        answer, _ = await lab.take(3)
        assert await lab.ack(answer, "a", 0) == OK
        for offset in (1, 2):
            assert (await lab.change(answer, "a", offset)).code == OK
        answer, bodies = await lab.take(2)
        assert bodies == [b"a1", b"a2"]
        assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1"
        assert [one.reconsume_times for one in split_records(answer.body_bytes)] == [1, 1]
        for offset in (1, 2):
            assert (await lab.change(answer, "a", offset, suspend="true")).code == OK
        answer, _ = await lab.take(2)
        assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1"
        # The handle of an earlier delivery is ignored, and an impossible one refused.
        assert await lab.ack(answer, "a", 9) == ResponseCode.NO_MESSAGE
        assert await lab.ack(answer, "a", 1, queueId=1) == ResponseCode.INVALID_PARAMETER
        info = lab.delivery(answer, "a", 1)["extraInfo"].replace(" 999 ", " 0 ")
        assert await lab.ack(answer, "a", 1, extraInfo=info) == ResponseCode.INVALID_PARAMETER
        assert await lab.ack(answer, "a", 1, consumerGroup="H") == ResponseCode.INVALID_PARAMETER

    run(tmp_path, test)


def test_an_exclusive_lite_topic_changes_its_client(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        lab.set_group(model="Exclusive", reset_offset_exclusive="true")
        await lab.send("a", b"a0")
        await lab.subscribe("PARTIAL_ADD", "a", client_id="C")
        answer, _ = await lab.take(1)
        assert await lab.ack(answer, "a", 0) == OK
        async with await RemotingClient.open(lab.broker.remoting) as other:
            await lab.subscribe("PARTIAL_ADD", "a", client_id="D", via=other)
        async with asyncio.timeout(10):
            told = await lab.client.next_call()
        assert told.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
        expected = {"clientId": "C", "consumerGroup": "G", "liteTopic": "a"}
        assert dict(told.ext_fields) == expected
        assert (await lab.take(1, client_id="D"))[1] == [b"a0"]  # again, from the beginning
        await lab.pop(NONE, client_id="C")

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"type": "POLICY", "value": 1}, [b"0", b"1", b"2"]),
        ({"type": "POLICY", "value": 2}, None),
        ({"type": "POLICY", "value": 0}, None),
        ({"type": "OFFSET", "value": 1}, [b"1", b"2"]),
        ({"type": "TAIL_N", "value": 1}, [b"2"]),
        ({"type": "TIMESTAMP", "value": 1}, None),
    ],
)
def test_a_subscription_sets_the_offset(
    tmp_path: Path, option: dict[str, Any], expected: list[bytes] | None
) -> None:
    async def test(lab: Lab) -> None:
        await lab.send("a", b"0", b"1", b"2")
        await lab.subscribe("PARTIAL_ADD", "a")
        answer, _ = await lab.take(3)
        for offset in range(3):
            assert await lab.ack(answer, "a", offset) == OK
        await lab.subscribe("PARTIAL_ADD", "a", offsetOption=option)
        if expected is None:
            await lab.pop(NONE)
        else:
            assert (await lab.take(3))[1] == expected

    run(tmp_path, test)


def test_a_wildcard_group_gets_all_lite_topics(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        lab.set_group(wildcard="true")
        await lab.send("a", b"a0")
        refused = await lab.subscribe("PARTIAL_ADD", "a")
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert (await lab.subscribe("COMPLETE_ADD", "x")).code == OK
        assert (await lab.take(1))[1] == [b"a0"]
        await lab.send("b", b"b0")
        assert (await lab.take(1))[1] == [b"b0"]
        await lab.subscribe("COMPLETE_REMOVE")
        assert lab.services.subscriptions.count == 0
        await lab.send("c", b"c0")
        await lab.pop(NONE)

    run(tmp_path, test)


def test_what_is_no_lite_topic_is_refused(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        lab.services.topics.update_topic(TopicConfig(topic_name="N"))
        lab.services.groups.update_group(SubscriptionGroupConfig(group_name="H"))
        illegal = ResponseCode.INVALID_PARAMETER
        await lab.pop(illegal, topic="N")
        await lab.pop(illegal, consumerGroup="H")
        await lab.pop(illegal, maxMsgNum=33)
        await lab.pop(ResponseCode.TOPIC_NOT_EXIST, topic="X")
        await lab.pop(NONE, bornTime=1)
        empty = await lab.client.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=b"{}")
        assert empty.code == ResponseCode.ILLEGAL_OPERATION
        lab.services.settings.max_lite_subscription_count = 2
        assert (await lab.subscribe("PARTIAL_ADD", "a", "b")).code == OK
        assert (await lab.subscribe("COMPLETE_ADD", "a", "b")).code == OK
        full = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert (await lab.subscribe("PARTIAL_ADD", "c")).code == full

    run(tmp_path, test)


def test_deliveries_outlive_a_restart_and_idle_topics_are_forgotten(tmp_path: Path) -> None:
    async def before() -> None:
        async with open_lab(broker) as lab:
            await lab.send("a", b"a0", b"a1")
            await lab.send("b", b"b0")
            await lab.subscribe("COMPLETE_ADD", "a", "b")
            answer, bodies = await lab.take(3)
            if len(bodies) < 3:
                answer, _ = await lab.take(3)
            queues = {one.body: one for one in split_records(answer.body_bytes)}
            assert queues
            assert await lab.ack(answer, "b", 0) == OK
            state = lab.services.receive.state
            await lab.services.offsets.persist()
            await state.close_idle()
            assert [one.topic for one in state.list_queues()] == ["%LMQ%$P$a"]
            assert await lab.ack(answer, "a", 0) == OK

    async def after() -> None:
        async with open_lab(broker) as lab:
            await lab.send("b", b"b1")
            await lab.subscribe("COMPLETE_ADD", "a", "b")
            assert (await lab.take(1))[1] == [b"b1"]  # a is still locked, b0 is done
            await lab.pop(NONE)
            found = lab.services.receive.state.find_queues("G", "%LMQ%$P$a")[0]
            assert list(found.entries) == [1]

    for step in (before, after):
        with Broker(folder=tmp_path, properties=SETTINGS) as broker:
            broker.run(step(), 100)


def test_a_quota_limits_the_number_of_light_queues(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.send("a", b"1")
        await lab.send("b", b"2")
        code, _ = await send(lab.client, "P", b"3", {"__LITE_TOPIC": "c"})
        assert code == 2017
        code, _ = await send(lab.client, "P", b"3", {"INNER_MULTI_DISPATCH": "%LMQ%x"})
        assert code == 2017
        await lab.send("a", b"4")
        assert (await send(lab.client, "P", b"5", {}))[0] == 0

    run(tmp_path, test, enableLmqQuota="true", maxLmqConsumeQueueNum="2")
