"""Tests of pulls over remoting: records, statuses, subscriptions and waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play, pull_messages, split_records
from tests.kit.local_stores import plain
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import HeaderType, RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.pull import _parse_subscription
from tieredstore.broker.state.topics import TopicConfig

WAITS = 2
SUBSCRIBES = 4


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_pull_gets_the_records_as_they_are_stored(
    tmp_path: Path, header_type: HeaderType
) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(5)))
        async with await RemotingClient.open(broker.address, header_type) as client:
            await join(client, "c")
            response = await pull_messages(client, 1)
        stored = broker.services.store.get_message("x", TOPIC, 0, 1, 32).messages
        assert response.code == ResponseCode.SUCCESS
        assert response.body_bytes == b"".join(message.raw for message in stored)
        assert [message.body for message in split_records(response.body_bytes)] == [
            b"body-%d" % number for number in range(1, 5)
        ]
        assert response.ext_fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "5",
            "minOffset": "0",
            "maxOffset": "5",
        }

    play(tmp_path, scenario)


def test_what_is_not_found_says_where_to_go_on(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(3)))
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c", expression="TagX")
            answers = {
                place: await pull_messages(client, *place)
                for place in ((0, 0), (3, 0), (9, 0), (-1, 0), (0, 1), (7, 1))
            }
        found = [
            (ResponseCode(answer.code), answer.ext_fields["nextBeginOffset"])
            for answer in answers.values()
        ]
        assert found == [
            (ResponseCode.PULL_RETRY_IMMEDIATELY, "3"),  # filtered out
            (ResponseCode.PULL_NOT_FOUND, "3"),
            (ResponseCode.PULL_OFFSET_MOVED, "3"),
            (ResponseCode.PULL_OFFSET_MOVED, "0"),
            (ResponseCode.PULL_NOT_FOUND, "0"),  # an empty queue
            (ResponseCode.PULL_OFFSET_MOVED, "0"),
        ]
        assert all(not answer.body_bytes for answer in answers.values())

    play(tmp_path, scenario)


def test_a_pull_without_a_subscription_uses_that_of_the_heartbeat(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(6)))
        async with await RemotingClient.open(broker.address) as client:
            assert (await pull_messages(client)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await join(client, "c", topics=["U"])
            assert (await pull_messages(client)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await join(client, "c", expression="Tag1", version=5)
            response = await pull_messages(client, sysFlag=1, commitOffset=2, subVersion=5)
            assert [m.tags for m in split_records(response.body_bytes)] == ["Tag1", "Tag1"]
            assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 2
            late = await pull_messages(client, subVersion=6)
            assert late.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            own = await client.request(
                RequestCode.LITE_PULL_MESSAGE,
                {
                    "consumerGroup": "another",
                    "topic": TOPIC,
                    "queueId": 0,
                    "queueOffset": 0,
                    "maxMsgNums": 32,
                    "sysFlag": 16 + SUBSCRIBES,
                    "subscription": "Tag0 || Tag2",
                    "expressionType": "TAG",
                },
            )
            assert [m.tags for m in split_records(own.body_bytes)] == ["Tag0", "Tag2"] * 2

    play(tmp_path, scenario)


def test_an_offset_that_comes_with_a_pull_is_kept_while_the_pull_waits(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c")
            waits = asyncio.create_task(pull_messages(client, sysFlag=3, commitOffset=7))
            await wait_for(lambda: broker.services.hold.count == 1)
            assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 7
            await broker.put(plain())
            assert (await waits).code == ResponseCode.SUCCESS

    play(tmp_path, scenario)


def test_a_pull_that_waits_ends_with_its_connection(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        hold = broker.services.hold
        async with await RemotingClient.open(broker.address) as stays:
            await join(stays, "1")
            other = asyncio.create_task(pull_messages(stays, sysFlag=WAITS))
            client = await RemotingClient.open(broker.address)
            await join(client, "2")
            waits = asyncio.create_task(pull_messages(client, sysFlag=WAITS))
            await wait_for(lambda: hold.count == 2)
            client.connection.abort("the client is gone")
            await asyncio.wait([waits])
            await wait_for(lambda: hold.count == 1)
            await broker.put(plain())
            assert (await other).code == ResponseCode.SUCCESS

    play(tmp_path, scenario)


def test_a_pull_waits_no_longer_than_it_asks_for(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c")
            response = await pull_messages(client, sysFlag=WAITS, suspendTimeoutMillis=20)
            assert response.code == ResponseCode.PULL_NOT_FOUND
            assert broker.services.hold.count == 0

    play(tmp_path, scenario)


def test_who_may_not_pull_is_told_why(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services = broker.services
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c", topics=[TOPIC, "W"])

            async def code(**fields: object) -> int:
                return (await pull_messages(client, **fields)).code  # type: ignore[arg-type]

            assert await code(topic="absent") == ResponseCode.TOPIC_NOT_EXIST
            services.topics.update_topic(TopicConfig(topic_name="W", perm=2))
            assert await code(topic="W") == ResponseCode.NO_PERMISSION
            for queue_id in (-1, 4, 2**40):
                assert await code(queue_id=queue_id) == ResponseCode.INVALID_PARAMETER
            assert await code(offset="x") == ResponseCode.INVALID_PARAMETER
            assert await code(consumerGroup="a b") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            group = services.groups.find_group(GROUP)
            assert group is not None
            group.consume_broadcast_enable = False
            await join(client, "c", model="BROADCASTING")
            assert await code() == ResponseCode.NO_PERMISSION
            group.consume_enable = False
            assert await code() == ResponseCode.NO_PERMISSION
            services.settings.broker_permission = 2
            assert await code() == ResponseCode.NO_PERMISSION

    play(tmp_path, scenario)


def test_sql92_is_served_where_it_is_switched_on(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(6)))
        async with await RemotingClient.open(broker.address) as client:
            sql = {"expression": "KEYS IN ('k1', 'k4')", "expression_type": "SQL92"}
            await join(client, "c", **sql)
            assert (await pull_messages(client)).code == ResponseCode.SYSTEM_ERROR
            broker.services.settings.enable_property_filter = True
            response = await pull_messages(client)
            assert [m.keys for m in split_records(response.body_bytes)] == [["k1"], ["k4"]]
            assert response.ext_fields["nextBeginOffset"] == "6"
            await join(client, "c", **sql | {"expression": "KEYS IN", "version": 2})
            assert (await pull_messages(client)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    play(tmp_path, scenario)


def test_long_expressions_of_clients_are_not_kept(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(plain(tags="a"))
        kept = _parse_subscription.cache_info().currsize
        async with await RemotingClient.open(broker.address) as client:
            for number in range(3):
                answer = await pull_messages(
                    client, sysFlag=SUBSCRIBES, subscription=f"a||{number:05000}"
                )
                assert answer.code == ResponseCode.SUCCESS
                answer = await pull_messages(
                    client, sysFlag=SUBSCRIBES, subscription="a", expressionType="T" * 5000
                )
                assert answer.code == ResponseCode.SYSTEM_ERROR
        assert _parse_subscription.cache_info().currsize == kept

    play(tmp_path, scenario)
