"""Tests of heartbeats, group members and locks over remoting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, heartbeat, join, play
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode


async def list_members(client: RemotingClient) -> list[str]:
    response = await client.request(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}
    )
    return json.loads(response.body_bytes)["consumerIdList"] if response.code == 0 else []


def test_members_are_told_of_each_change(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as first:
            assert await list_members(first) == []
            await join(first, "1")
            told = await first.next_call()
            assert (told.code, told.ext_fields) == (40, {"consumerGroup": GROUP})
            assert told.is_one_way
            second = await RemotingClient.open(broker.address)
            await join(second, "2")
            assert (await first.next_call()).code == (await second.next_call()).code == 40
            assert await list_members(first) == ["1", "2"]
            await join(second, "2")  # nothing new
            await second.request(
                RequestCode.UNREGISTER_CLIENT, {"clientID": "2", "consumerGroup": GROUP}
            )
            assert (await first.next_call()).code == 40
            assert await list_members(first) == ["1"]
            await join(second, "2")
            assert (await first.next_call()).code == 40
            second.connection.abort("killed")
            assert (await first.next_call()).code == 40
            assert await list_members(first) == ["1"]
            assert first.waiting_calls == 0

    play(tmp_path, scenario)


def test_a_heartbeat_makes_the_retry_topic_and_names_the_client(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services = broker.services
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "me", expression="A || B", version=3, producer="p")
            retry = services.topics.find_topic("%RETRY%" + GROUP)
            assert retry is not None
            assert (retry.read_queue_nums, retry.perm) == (1, 6)
            producer = services.producers.find_session("p")
            group = services.consumers.find_group(GROUP)
            assert producer is not None
            assert group is not None
            assert group.sessions == [producer]
            assert (producer.client_id, producer.version) == ("me", 513)
            assert group.settings.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
            subscription = services.consumers.find_subscription(GROUP, TOPIC)
            assert subscription is not None
            assert subscription.tags == frozenset({"A", "B"})
            assert subscription.version == 3
        await wait_for(lambda: services.consumers.find_group(GROUP) is None)
        assert services.producers.find_session("p") is None

    play(tmp_path, scenario)


def test_a_heartbeat_counts_while_the_retry_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services, retry = broker.services, "%RETRY%" + GROUP
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "me")
            with services.topics.deleting({retry}):
                await join(client, "me")
                assert services.topics.find_topic(retry) is None
                assert await list_members(client) == ["me"]
            await join(client, "me")
            assert services.topics.find_topic(retry) is not None

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"clientID":1}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","consumerDataSet":' + b"[" * 100_000,
        b'{"clientID":"c","producerDataSet":[' + b",".join([b'{"groupName":"g"}'] * 10_001) + b"]}",
    ],
)
def test_a_heartbeat_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            response = await client.request(RequestCode.HEART_BEAT, body=body)
            assert response.code == ResponseCode.INVALID_PARAMETER
            assert broker.services.consumers.list_groups() == {}

    play(tmp_path, scenario)


def test_numbers_of_other_languages_may_be_text(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        body = heartbeat("c").replace(b'"subVersion":1', b'"subVersion":"7"')
        async with await RemotingClient.open(broker.address) as client:
            assert (await client.request(RequestCode.HEART_BEAT, body=body)).code == 0
            found = broker.services.consumers.find_subscription(GROUP, TOPIC)
            assert found is not None
            assert found.version == 7

    play(tmp_path, scenario)


def test_a_queue_is_locked_for_one_member(tmp_path: Path) -> None:
    queues = [{"topic": TOPIC, "brokerName": "b", "queueId": queue_id} for queue_id in (0, 1)]

    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:

            async def lock(client_id: str) -> list[dict[str, object]]:
                body = {"consumerGroup": GROUP, "clientId": client_id, "mqSet": queues}
                response = await client.request(
                    RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode()
                )
                locked: list[dict[str, object]] = json.loads(response.body_bytes)["lockOKMQSet"]
                return locked

            assert await lock("1") == queues
            assert await lock("2") == []
            body = {"consumerGroup": GROUP, "clientId": "1", "mqSet": queues[:1]}
            await client.request(RequestCode.UNLOCK_BATCH_MQ, body=json.dumps(body).encode())
            assert await lock("2") == queues[:1]

    play(tmp_path, scenario)


def test_a_subscription_is_checked_before_it_is_used(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:

            async def check(expression: str, kind: str = "SQL92") -> int:
                data = {"topic": TOPIC, "subString": expression, "expressionType": kind}
                body = {"clientId": "c", "group": GROUP, "subscriptionData": data}
                response = await client.request(
                    RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode()
                )
                return response.code

            assert await check("a > 1") == ResponseCode.SYSTEM_ERROR  # switched off
            assert await check("A || B", "TAG") == ResponseCode.SUCCESS
            broker.services.settings.enable_property_filter = True
            assert await check("a > 1") == ResponseCode.SUCCESS
            assert await check("a >") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert await check("a", "XPATH") == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    play(tmp_path, scenario)


def test_s81_later_heartbeats_of_a_connection_count_together(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            codes = []
            for part in ("a", "b"):
                groups = [{"groupName": f"{part}{number}"} for number in range(6_000)]
                body = json.dumps({"clientID": "c", "producerDataSet": groups}).encode()
                codes.append((await client.request(RequestCode.HEART_BEAT, body=body)).code)
            assert codes == [0, ResponseCode.INVALID_PARAMETER]
            assert len(broker.services.producers.list_groups()) == 10_000

    play(tmp_path, scenario)


@pytest.mark.parametrize("size", [1_024, 1_025])
def test_s81_a_client_id_is_at_most_1024_characters_long(tmp_path: Path, size: int) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            body = json.dumps({"clientID": "c" * size, "producerDataSet": [{"groupName": "p"}]})
            answer = await client.request(RequestCode.HEART_BEAT, body=body.encode())
            assert answer.code == (0 if size == 1_024 else ResponseCode.INVALID_PARAMETER)
            lock = {"consumerGroup": GROUP, "clientId": "c" * size, "mqSet": []}
            answer = await client.request(RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode())
            assert answer.code == (0 if size == 1_024 else ResponseCode.INVALID_PARAMETER)

    play(tmp_path, scenario)


def test_s81_only_queues_of_the_broker_are_locked(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            queues = [
                {"topic": topic, "queueId": queue_id, "brokerName": "b"}
                for topic, queue_id in ((TOPIC, -1), (TOPIC, 0), (TOPIC, 65_536), ("absent", 0))
            ]
            for group, locked in ((GROUP, queues[1:2]), ("bad group", [])):
                lock = {"consumerGroup": group, "clientId": "c", "mqSet": queues}
                answer = await client.request(
                    RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode()
                )
                assert json.loads(answer.body_bytes)["lockOKMQSet"] == locked
            assert broker.services.locks._groups.keys() == {GROUP}

    play(tmp_path, scenario)
