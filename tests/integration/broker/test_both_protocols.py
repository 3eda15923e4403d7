"""Both protocols serve one store. Messages sent over one protocol arrive over the other with all
properties. Receipts and acknowledgements over gRPC survive a restart of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.consuming import split_records
from tests.kit.grpc_broker import GrpcClient, codes
from tests.kit.grpc_types import find_message, list_values
from tests.kit.remoting import RemotingClient
from tests.kit.running_broker import running_broker
from tieredstore.broker.broker import Broker
from tieredstore.broker.grpc.protocol import read_duration_ms, write_duration_ms
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.message.properties import encode_properties

FILTERS = list_values("FilterType")


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[tuple[Broker, GrpcClient, RemotingClient]]:
    async with running_broker(root) as broker:
        services = broker.services
        services.topics.update_topic(
            TopicConfig(
                topic_name="T",
                read_queue_nums=1,
                write_queue_nums=1,
                attributes={"message.type": "MIXED"},
            )
        )
        services.groups.update_group(
            SubscriptionGroupConfig(
                group_name="G", attributes={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
            )
        )
        port = int(broker.addresses["grpc"].rpartition(":")[2])
        remoting = await RemotingClient.open(broker.addresses["remoting"])
        try:
            async with GrpcClient(port, "c") as client:
                yield broker, client, remoting
        finally:
            await remoting.close()


async def send_by_grpc(client: GrpcClient, body: bytes, **system: Any) -> Any:
    request = find_message("SendMessageRequest")()
    message = request.messages.add(body=body)
    message.topic.name = "T"
    message.system_properties.message_id = body.hex().upper()
    message.system_properties.tag = "a"
    message.system_properties.keys.extend(["k1", "k2"])
    message.user_properties["colour"] = "blue"
    for name, value in system.items():
        setattr(message.system_properties, name, value)
    response = await client.call("SendMessage", request)
    assert codes([response.status]) == ["OK"]
    return response.entries[0]


async def receive(client: GrpcClient) -> list[Any]:
    request = find_message("ReceiveMessageRequest")(batch_size=32)
    request.group.name = "G"
    request.message_queue.topic.name = "T"
    request.filter_expression.type = FILTERS["TAG"]
    request.filter_expression.expression = "*"
    write_duration_ms(request.invisible_duration, 30_000)
    write_duration_ms(request.long_polling_timeout, 1_000)
    responses = await client.receive(request)
    return [one.message for one in responses if one.WhichOneof("content") == "message"]


async def receive_some(client: GrpcClient, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(20):
        found += await receive(client)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages came")


async def ack(client: GrpcClient, message: Any) -> str:
    request = client.make("AckMessageRequest", group="G", topic="T")
    handle = message.system_properties.receipt_handle
    request.entries.add(message_id="m", receipt_handle=handle)
    return codes([(await client.call("AckMessage", request)).status])[0]


def test_what_grpc_sends_remoting_pulls_and_finds_by_key_and_unique_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client, remoting):
            entry = await send_by_grpc(client, b"hello", message_group="g")
            pull = {
                "consumerGroup": "R",
                "topic": "T",
                "queueId": 0,
                "queueOffset": 0,
                "maxMsgNums": 32,
                "sysFlag": 6,
                "commitOffset": 0,
                "suspendTimeoutMillis": 5_000,
                "subscription": "a",
                "subVersion": 0,
                "expressionType": "TAG",
            }
            pulled = await remoting.request(RequestCode.PULL_MESSAGE, pull)
            (message,) = split_records(pulled.body_bytes)
            assert bytes(message.body) == b"hello"
            assert message.msg_id == entry.message_id
            assert (message.tags, message.keys) == ("a", ["k1", "k2"])
            assert message.get_property("colour") == "blue"
            assert message.get_property("__SHARDINGKEY") == "g"
            for key, is_unique in (("k2", "false"), (entry.message_id, "true")):
                query = {
                    "topic": "T",
                    "key": key,
                    "maxNum": 10,
                    "beginTimestamp": 0,
                    "endTimestamp": 2**63 - 1,
                    "_UNIQUE_KEY_QUERY": is_unique,
                }
                for _ in range(500):  # the index comes behind the queues
                    answer = await remoting.request(RequestCode.QUERY_MESSAGE, query)
                    if answer.code == ResponseCode.SUCCESS:
                        break
                    await asyncio.sleep(0.01)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                (found,) = split_records(answer.body_bytes)
                assert found.raw == message.raw

    asyncio.run(run())


def test_what_remoting_sends_grpc_receives(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client, remoting):
            properties = {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "F" * 32, "colour": "blue"}
            fields = {
                "a": "P",
                "b": "T",
                "c": "TBW102",
                "d": 4,
                "e": 0,
                "f": 0,
                "g": 1_700_000_000_123,
                "h": 0,
                "i": encode_properties(properties).decode(),
                "j": 0,
                "k": False,
                "m": False,
            }
            answer = await remoting.request(RequestCode.SEND_MESSAGE_V2, fields, b"hello")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            (message,) = await receive_some(client, 1)
            system = message.system_properties
            assert message.body == b"hello"
            assert system.message_id == "F" * 32
            assert (system.tag, list(system.keys)) == ("a", ["k1", "k2"])
            assert dict(message.user_properties) == {"colour": "blue"}
            assert system.born_timestamp.seconds == 1_700_000_000
            assert await ack(client, message) == "OK"

    asyncio.run(run())


def test_what_is_taken_and_what_is_done_stays_so_when_the_broker_starts_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client, _):
            for number in range(3):
                await send_by_grpc(client, b"body %d" % number)
            taken = await receive_some(client, 3)
            assert await ack(client, taken[1]) == "OK"
        async with serving(tmp_path) as (_, client, _):
            assert await receive(client) == []
            assert await ack(client, taken[1]) == "INVALID_RECEIPT_HANDLE"
            assert await ack(client, taken[0]) == "OK"
            change = client.make(
                "ChangeInvisibleDurationRequest",
                group="G",
                topic="T",
                receipt_handle=taken[2].system_properties.receipt_handle,
            )
            response = await client.call("ChangeInvisibleDuration", change)
            assert codes([response.status]) == ["OK"]
            (again,) = await receive_some(client, 1)
            assert again.body == taken[2].body
            assert again.system_properties.delivery_attempt == 2
            assert 0 < read_duration_ms(again.system_properties.invisible_duration) <= 30_000

    asyncio.run(run())
