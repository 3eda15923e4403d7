"""Tests of transactions over gRPC: commits, rollbacks, and checks sent over the telemetry
stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import find_message, list_values
from tieredstore.broker.grpc.message_types import Settings, TelemetryCommand
from tieredstore.broker.grpc.protocol import write_duration_ms

TYPES = list_values("MessageType")
RESOLUTIONS = list_values("TransactionResolution")
SOURCES = list_values("TransactionSource")


def with_client(
    root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]], **properties: str
) -> None:
    async def run() -> None:
        async with serving_grpc(root, properties) as broker, broker.client() as client:
            await test(broker, client)

    asyncio.run(run())


async def send_half(
    client: GrpcClient, body: bytes, recover_ms: int | None = None, namespace: str = ""
) -> str:
    request = find_message("SendMessageRequest")()
    message = request.messages.add(body=body)
    message.topic.name, message.topic.resource_namespace = "T", namespace
    system = message.system_properties
    system.message_id = body.hex()
    system.message_type = TYPES["TRANSACTION"]
    if recover_ms is not None:
        write_duration_ms(system.orphaned_transaction_recovery_duration, recover_ms)
    response = await client.call("SendMessage", request)
    assert codes([response.status]) == ["OK"]
    transaction_id: str = response.entries[0].transaction_id
    assert transaction_id
    return transaction_id


async def end(client: GrpcClient, transaction_id: str, resolution: str, namespace: str = "") -> str:
    request = client.make("EndTransactionRequest", topic="T", transaction_id=transaction_id)
    request.topic.resource_namespace = namespace
    request.resolution = RESOLUTIONS[resolution]
    request.source = SOURCES["SOURCE_CLIENT"]
    return codes([(await client.call("EndTransaction", request)).status])[0]


def read_bodies(broker: GrpcBroker) -> list[bytes]:
    store = broker.services.store
    return [
        bytes(message.body)
        for queue_id in range(8)
        for message in store.get_message("G", "T", queue_id, 0, 32).messages
    ]


async def wait_for_bodies(broker: GrpcBroker, count: int) -> list[bytes]:
    for _ in range(1000):
        if len(found := read_bodies(broker)) >= count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"expected {count} messages")


def test_a_half_message_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        kept, dropped = await send_half(client, b"kept"), await send_half(client, b"dropped")
        assert read_bodies(broker) == []
        assert await end(client, dropped, "ROLLBACK") == "OK"
        assert await end(client, kept, "COMMIT") == "OK"
        assert await wait_for_bodies(broker, 1) == [b"kept"]
        assert await end(client, kept, "COMMIT") == "OK"
        assert await end(client, dropped, "COMMIT") == "OK"
        await asyncio.sleep(0.1)
        assert read_bodies(broker) == [b"kept"]

    with_client(tmp_path, test)


@pytest.mark.parametrize("transaction_id", ["", "x", "0" * 31, "g" * 32])
def test_an_id_that_is_none_is_refused(tmp_path: Path, transaction_id: str) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        assert await end(client, transaction_id, "COMMIT") == "INVALID_TRANSACTION_ID"
        assert await end(client, "0" * 32, "COMMIT") != "OK"

    with_client(tmp_path, test)


def test_a_producer_is_asked_about_what_it_left_open(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        settings = Settings()
        settings.publishing.topics.add().name = "T"
        await stream.write(TelemetryCommand(settings=settings))
        await stream.read()
        await send_half(client, b"left open", recover_ms=1_000)
        command: Any = await asyncio.wait_for(stream.read(), 20)
        recover = command.recover_orphaned_transaction_command
        assert recover.message.topic.name == "T"
        assert recover.message.body == b"left open"
        assert recover.message.system_properties.message_id == b"left open".hex()
        assert recover.message.system_properties.message_type == TYPES["TRANSACTION"]
        assert await end(client, recover.transaction_id, "COMMIT") == "OK"
        assert await wait_for_bodies(broker, 1) == [b"left open"]

    with_client(tmp_path, test, transactionTimeOut="500", transactionCheckInterval="200")


def test_a_producer_is_asked_with_the_name_that_it_gave_the_topic(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        settings = Settings()
        settings.publishing.topics.add(name="T", resource_namespace="shop")
        await stream.write(TelemetryCommand(settings=settings))
        await stream.read()
        await send_half(client, b"left open", recover_ms=1_000, namespace="shop")
        command: Any = await asyncio.wait_for(stream.read(), 20)
        asked = command.recover_orphaned_transaction_command
        topic = asked.message.topic
        assert (topic.name, topic.resource_namespace) == ("T", "shop")
        assert await end(client, asked.transaction_id, "COMMIT", namespace="shop") == "OK"

    with_client(tmp_path, test, transactionTimeOut="500", transactionCheckInterval="200")
