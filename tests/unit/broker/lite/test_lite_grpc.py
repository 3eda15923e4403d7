"""Tests of consumers of lite topics over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import find_message, list_values
from tests.kit.remoting import wait_for
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig

ACTIONS = list_values("LiteSubscriptionAction")
TYPES = list_values("ClientType")
PROPERTIES = {"enableLmq": "true", "enableMultiDispatch": "true"}


def run(root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]]) -> None:
    async def go() -> None:
        async with serving_grpc(root, PROPERTIES) as broker, broker.client() as client:
            kind = {"message.type": "LITE"}
            broker.services.topics.update_topic(TopicConfig(topic_name="P", attributes=kind))
            set_group(broker)
            await test(broker, client)

    asyncio.run(go())


def set_group(broker: GrpcBroker, name: str = "G", **attributes: str) -> None:
    found = {"lite.bind.topic": "P"} | {
        f"lite.sub.{key}".replace("_", "."): value for key, value in attributes.items()
    }
    config = SubscriptionGroupConfig(group_name=name, attributes=found, retry_max_times=1)
    broker.services.groups.update_group(config)


async def send(broker: GrpcBroker, client: GrpcClient, lite_topic: str, *bodies: bytes) -> None:
    for number, body in enumerate(bodies):
        request = find_message("SendMessageRequest")()
        message = request.messages.add(body=body)
        message.topic.name = "P"
        message.system_properties.message_id = f"{number:034x}"
        message.system_properties.lite_topic = lite_topic
        response = await client.call("SendMessage", request)
        assert codes([response.status]) == ["OK"]
    store, queue = broker.services.store, f"%LMQ%$P${lite_topic}"
    await wait_for(lambda: store.get_max_offset_in_queue(queue, 0) >= len(bodies))


async def sync(client: GrpcClient, action: str, *names: str, **more: Any) -> str:
    request = find_message("SyncLiteSubscriptionRequest")()
    request.topic.name, request.group.name = more.get("topic", "P"), more.get("group", "G")
    request.action = ACTIONS[action]
    request.lite_topic_set.extend(names)
    if "offset" in more:
        request.offset_option.offset = more["offset"]
    return codes([(await client.call("SyncLiteSubscription", request)).status])[0]


async def receive(client: GrpcClient, wait_s: int = 10, group: str = "G") -> list[Any]:
    request = find_message("ReceiveMessageRequest")()
    request.group.name, request.message_queue.topic.name = group, "P"
    request.batch_size, request.auto_renew = 32, True
    request.long_polling_timeout.seconds = wait_s
    answers = await client.receive(request)
    return [one.message for one in answers if one.WhichOneof("content") == "message"]


async def ack(client: GrpcClient, message: Any) -> str:
    request = find_message("AckMessageRequest")()
    request.group.name, request.topic.name = "G", "P"
    system = message.system_properties
    request.entries.add(
        receipt_handle=system.receipt_handle, message_id="m", lite_topic=system.lite_topic
    )
    return codes([(await client.call("AckMessage", request)).status])[0]


def test_a_lite_topic_is_received_in_order(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, client, "a", b"a0", b"a1")
        assert await sync(client, "COMPLETE_ADD", "a") == "OK"
        messages = await receive(client)
        assert [one.body for one in messages] == [b"a0", b"a1"]
        assert {one.system_properties.lite_topic for one in messages} == {"a"}
        assert "INNER_MULTI_DISPATCH" not in messages[0].user_properties
        await send(broker, client, "a", b"a2")
        waiting = asyncio.create_task(receive(client))
        assert await ack(client, messages[0]) == "OK"
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await ack(client, messages[1]) == "OK"
        assert [one.body for one in await waiting] == [b"a2"]
        assert await ack(client, messages[1]) == "INVALID_RECEIPT_HANDLE"

    run(tmp_path, test)


def test_the_lite_topic_is_that_of_the_receipt_handle(tmp_path: Path) -> None:
    """A change of the invisible time applies to the lite topic in the receipt handle. Java's client
    5.2.0 does not name the lite topic in this request."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, client, "a", b"a0")
        await sync(client, "PARTIAL_ADD", "a")
        [message] = await receive(client)
        request = find_message("ChangeInvisibleDurationRequest")()
        request.group.name, request.topic.name = "G", "P"
        request.receipt_handle = message.system_properties.receipt_handle
        request.invisible_duration.seconds = 1
        response = await client.call("ChangeInvisibleDuration", request)
        assert codes([response.status]) == ["OK"]
        async with asyncio.timeout(8):
            [again] = await receive(client)
        assert again.body == b"a0"
        assert again.system_properties.delivery_attempt == 2
        # After its last attempt the client forwards it, and the lite topic continues.
        await send(broker, client, "a", b"a1")
        forward = find_message("ForwardMessageToDeadLetterQueueRequest")()
        forward.group.name, forward.topic.name = "G", "P"
        forward.receipt_handle = again.system_properties.receipt_handle
        response = await client.call("ForwardMessageToDeadLetterQueue", forward)
        assert codes([response.status]) == ["OK"]
        assert [one.body for one in await receive(client)] == [b"a1"]
        await wait_for(lambda: broker.services.store.get_max_offset_in_queue("%DLQ%G", 0) == 1)

    run(tmp_path, test)


def test_subscriptions_of_other_groups_and_names_are_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.groups.update_group(SubscriptionGroupConfig(group_name="H"))
        broker.services.topics.update_topic(TopicConfig(topic_name="T"))
        assert await sync(client, "PARTIAL_ADD", "a$b") == "ILLEGAL_LITE_TOPIC"
        assert await sync(client, "PARTIAL_ADD", "a", group="H") == "ILLEGAL_CONSUMER_GROUP"
        assert await sync(client, "PARTIAL_ADD", "a", topic="T") == "ILLEGAL_TOPIC"
        broker.services.settings.max_lite_subscription_count = 1
        full = "LITE_SUBSCRIPTION_QUOTA_EXCEEDED"
        assert await sync(client, "COMPLETE_ADD", "a", "b") == full

    run(tmp_path, test)


@pytest.mark.parametrize("kind", ["LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER", "PUSH_CONSUMER"])
def test_settings_have_quota_and_size(tmp_path: Path, kind: str) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        set_group(broker, client_quota=str(2**40))
        stream = client.open_telemetry()
        command = find_message("TelemetryCommand")()
        command.settings.client_type = TYPES[kind]
        command.settings.subscription.group.name = "G"
        await stream.write(command)
        answer = await stream.read()
        if kind == "PUSH_CONSUMER":
            assert codes([answer.status]) == ["ILLEGAL_CONSUMER_GROUP"]
            return
        subscription = answer.settings.subscription
        assert subscription.lite_subscription_quota == 2**31 - 1
        assert subscription.max_lite_topic_size == 64
        # Another client takes the lite topic of an exclusive group.
        set_group(broker, model="Exclusive")
        assert await sync(client, "PARTIAL_ADD", "a") == "OK"
        async with broker.client("other") as other:
            assert await sync(other, "PARTIAL_ADD", "a") == "OK"
        told = await stream.read()
        assert told.notify_unsubscribe_lite_command.lite_topic == "a"
        # A client that has gone has no subscription.
        await sync(client, "PARTIAL_ADD", "b")
        await stream.done_writing()
        await wait_for(lambda: broker.services.subscriptions.count == 1)

    run(tmp_path, test)
