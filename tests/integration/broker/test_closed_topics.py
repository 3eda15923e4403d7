"""Over each protocol, a broker refuses writes to topics that are reserved for brokers. It ignores
messages in these topics that an older broker accepted."""

from __future__ import annotations

import asyncio
import json
import struct
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consuming import split_records
from tests.kit.grpc_broker import GrpcClient, codes
from tests.kit.grpc_types import find_message
from tests.kit.loops import on_loop
from tests.kit.remoting import RemotingClient
from tests.kit.running_broker import running_broker
from tieredstore.broker.broker import Broker
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import encode_host
from tieredstore.message.names import DELETION_TOPIC, TIMER_TOPIC

OWN = (DELETION_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_new", "TBW102")
SENT = b"CLUSTER\x01C\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
CLIENT = encode_host("127.0.0.1", 40_000)


async def send(
    client: RemotingClient, topic: str, body: bytes = b"x", code: int = 10, **more: Any
) -> Any:
    fields = {
        "producerGroup": "g",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": False,
        "batch": False,
        **more,
    }
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        fields = dict(zip("abcdefghijkm", fields.values(), strict=True))
    return await client.request(code, fields, body)


async def send_by_grpc(client: GrpcClient, topic: str, *, half: bool = False) -> list[str]:
    request = find_message("SendMessageRequest")()
    message = request.messages.add(body=b"x")
    message.topic.name = topic
    message.system_properties.message_id = "ID"
    message.user_properties["REAL_TOPIC"] = "other"
    message.user_properties["colour"] = "blue"
    if half:
        message.system_properties.message_type = 4
    return codes([(await client.call("SendMessage", request)).status])


async def pull(client: RemotingClient, topic: str) -> list[Any]:
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    found = await client.request(RequestCode.PULL_MESSAGE, fields)
    return split_records(found.body_bytes) if found.code == ResponseCode.SUCCESS else []


async def ask_health(broker: Broker) -> dict[str, Any]:
    url = f"http://{broker.addresses['metrics']}/health"

    def read() -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    return await asyncio.to_thread(read)


async def count_skipped(broker: Broker) -> dict[str, int]:
    counts: dict[str, int] = (await ask_health(broker))["skipped_records"]
    return counts


@pytest.mark.parametrize("topic", OWN)
@on_loop
async def test_i30_both_protocols_of_a_broker_refuse_its_topics(tmp_path: Path, topic: str) -> None:
    inner = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)
    reply: dict[str, Any] = {"properties": "REPLY_TO_CLIENT\x01c\x02"}
    async with running_broker(tmp_path) as broker:
        port = int(broker.addresses["grpc"].rpartition(":")[2])
        async with (
            await RemotingClient.open(broker.addresses["remoting"]) as client,
            GrpcClient(port, "c") as grpc,
        ):
            for answer in (
                await send(client, topic),
                await send(client, topic, code=RequestCode.SEND_MESSAGE_V2),
                await send(client, topic, inner, RequestCode.SEND_BATCH_MESSAGE, batch=True),
                await send(client, topic, properties="TRAN_MSG\x01true\x02PGROUP\x01g\x02"),
                await send(client, topic, code=RequestCode.SEND_REPLY_MESSAGE, **reply),
            ):
                assert answer.code == ResponseCode.NO_PERMISSION, answer
                assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
            assert await send_by_grpc(grpc, topic) == ["FORBIDDEN"]
            assert await send_by_grpc(grpc, topic, half=True) == ["FORBIDDEN"]
            # What only the broker sets is no reason to refuse a message.
            assert await send_by_grpc(grpc, "T") == ["OK"]
            put = broker.services.store.put_message(Message(topic, b"x", 0))
            assert not put.ok
            assert (await ask_health(broker))["skipped_records"] == {}


@on_loop
async def test_i32_a_broker_starts_over_a_log_with_forged_records(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with await RemotingClient.open(broker.addresses["remoting"]) as client:
            assert (await send(client, "orders", b"order")).code == ResponseCode.SUCCESS
        store = broker.services.store
        assert isinstance(store, DefaultMessageStore)
        deletes = b'{"version":1,"topic":"orders","queues":{"0":1}}'
        due = b"TIMER_OUT_MS\x011000\x02REAL_QID\x010\x02REAL_TOPIC\x01"
        for topic, body, properties in (
            (DELETION_TOPIC, b"not json", b""),
            (DELETION_TOPIC, deletes, b"TAGS\x01orders\x02"),
            (TIMER_TOPIC, b"9" * 5_000, due + b"RMQ_SYS_TRANS_OP_HALF_TOPIC\x02"),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"9" * 5_000, b""),
            (
                "SCHEDULE_TOPIC_XXXX",
                b"x",
                b"REAL_TOPIC\x01T\x02REAL_QID\x01%s\x02" % (b"9" * 5_000),
            ),
        ):
            message = Message(topic, body, 0, properties + SENT, 0, 0, 1, CLIENT)
            assert store._appender._append([message], is_special=True).ok
    first = broker.services.skipped.count_by_topic()  # up to its stop
    async with running_broker(tmp_path) as broker:
        async with await RemotingClient.open(broker.addresses["remoting"]) as client:
            assert [bytes(one.body) for one in await pull(client, "orders")] == [b"order"]
            delayed = await send(client, "later", properties="DELAY\x011\x02")
            assert delayed.code == ResponseCode.SUCCESS
            for _ in range(200):
                if await pull(client, "later"):
                    break
                await asyncio.sleep(0.1)
            assert await pull(client, "later")
        found = await count_skipped(broker)
        assert (await ask_health(broker))["status"] == "up"
    assert found[DELETION_TOPIC] == 2
    assert found["RMQ_SYS_TRANS_OP_HALF_TOPIC"] == 1
    # The first broker may have come to them.
    assert (first | found).keys() >= {TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"}


HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
FAR = {"queueId": 0, "commitOffset": 1_000_000}


async def prepare(client: RemotingClient, body: bytes) -> dict[str, Any]:
    """Send a half message. Return the fields of the request that commits it."""
    half = "TRAN_MSG\x01true\x02PGROUP\x01ptx\x02"
    sent = await send(client, "orders", body, properties=half, sysFlag=4, producerGroup="ptx")
    return {
        "producerGroup": "ptx",
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitLogOffset": int(sent.ext_fields["msgId"][16:], 16),
        "commitOrRollback": 8,
    }


async def move_own_offsets(client: RemotingClient, group: str) -> list[int]:
    """Send every kind of request that sets a group's offset, each with the aim of changing the
    broker's own transaction offsets. Return the response codes."""
    mine: dict[str, Any] = {"topic": HALF, "consumerGroup": "evil", **FAR}
    theirs = {**mine, "consumerGroup": group}
    more = {"queueOffset": 0, "maxMsgNums": 1, "sysFlag": 5, "subscription": "*", "subVersion": 0}
    await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, mine)
    await client.request(RequestCode.PULL_MESSAGE, {**theirs, **more, "suspendTimeoutMillis": 0})
    reset = {"topic": HALF, "group": group, "timestamp": -1, "isForce": True}
    clone = {"srcGroup": "evil", "destGroup": group, "topic": HALF, "offline": False}
    return [
        (await client.request(code, fields)).code
        for code, fields in (
            (RequestCode.UPDATE_CONSUMER_OFFSET, theirs),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "queueId": 0, "offset": 9}),
            (RequestCode.CLONE_GROUP_OFFSET, clone),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": True}),
        )
    ]


@on_loop
async def test_i70_no_client_moves_the_progress_of_transactions(tmp_path: Path) -> None:
    """No client can change the broker's own consumer offset in the topic of half messages.
    Otherwise the broker would treat earlier transactions as finished, and a commit of such a
    transaction would deliver nothing."""
    async with running_broker(tmp_path) as broker:
        port = int(broker.addresses["grpc"].rpartition(":")[2])
        async with (
            await RemotingClient.open(broker.addresses["remoting"]) as client,
            GrpcClient(port, "c") as grpc,
        ):
            commits = [await prepare(client, b"first")]
            for group in ("CID_RMQ_SYS_TRANS", "CID_SYS_RMQ_TRANS", "CID_RMQ_SYS_REVIVE_GROUP"):
                answers = await move_own_offsets(client, group)
                assert answers == [ResponseCode.NO_PERMISSION] * 4
                request = find_message("ReceiveMessageRequest")(batch_size=1)
                request.group.name, request.message_queue.topic.name = group, HALF
                [answer] = await grpc.receive(request)
                assert codes([answer.status]) == ["ILLEGAL_CONSUMER_GROUP"]
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.addresses["remoting"]) as client,
    ):
        commits.append(await prepare(client, b"second"))
        for commit in commits:
            answer = await client.request(RequestCode.END_TRANSACTION, commit)
            assert answer.code == ResponseCode.SUCCESS
        store = broker.services.store
        assert isinstance(store, DefaultMessageStore)
        await asyncio.to_thread(store.wait_until_dispatched)
        found = [bytes(one.body) for one in await pull(client, "orders")]
        assert found == [b"first", b"second"]
