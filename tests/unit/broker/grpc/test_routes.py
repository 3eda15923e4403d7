"""Tests of QueryRoute and QueryAssignment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tieredstore.broker.grpc.stubs import list_values
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig

PERMISSIONS = list_values("Permission")
TYPES = list_values("MessageType")


def with_client(
    root: Path,
    test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]],
    **properties: str,
) -> None:
    async def run() -> None:
        async with serving_grpc(root, properties) as broker, broker.client() as client:
            await test(broker, client)

    asyncio.run(run())


def route(client: GrpcClient, topic: str) -> Any:
    return client.make("QueryRouteRequest", topic=topic, endpoints=True)


def test_a_route_echoes_the_endpoints_of_the_request(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=3)
        )
        request = route(client, "T")
        request.endpoints.scheme = list_values("AddressScheme")["DOMAIN_NAME"]
        request.endpoints.addresses[0].host = "broker.example"
        response = await client.call("QueryRoute", request)
        assert codes([response.status]) == ["OK"]
        queues = response.message_queues
        assert [queue.id for queue in queues] == [0, 1, 2]
        assert all(queue.broker.endpoints == request.endpoints for queue in queues)
        assert {queue.broker.name for queue in queues} == {"broker-a"}
        assert [queue.permission for queue in queues] == [
            PERMISSIONS["READ_WRITE"],
            PERMISSIONS["READ_WRITE"],
            PERMISSIONS["WRITE"],
        ]
        assert list(queues[0].accept_message_types) == [
            TYPES[name] for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
        ]

    with_client(tmp_path, test)


def test_a_topic_with_a_type_takes_that_one_alone(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.topics.update_topic(
            TopicConfig(topic_name="T", attributes={"message.type": "FIFO"})
        )
        response = await client.call("QueryRoute", route(client, "T"))
        assert list(response.message_queues[0].accept_message_types) == [TYPES["FIFO"]]

    with_client(tmp_path, test)


def test_an_unknown_topic_is_made_where_sends_may_make_it(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, "new"))
        assert codes([response.status]) == ["OK"]
        assert len(response.message_queues) == 8
        assert broker.services.topics.find_topic("new") is not None

    with_client(tmp_path, test)


def test_an_unknown_topic_is_not_found_where_they_may_not(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, "new"))
        assert codes([response.status]) == ["TOPIC_NOT_FOUND"]
        assert broker.services.topics.find_topic("new") is None

    with_client(tmp_path, test, autoCreateTopicEnable="false")


@pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", "x" * 300])
def test_i02_a_topic_with_an_illegal_name_is_refused(tmp_path: Path, name: str) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, name))
        assert codes([response.status]) == ["ILLEGAL_TOPIC"]

    with_client(tmp_path, test)


def test_endpoints_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = client.make("QueryRouteRequest", topic="T")
        response = await client.call("QueryRoute", request)
        assert codes([response.status]) == ["ILLEGAL_ACCESS_POINT"]

    with_client(tmp_path, test)


def test_a_group_gets_one_assignment_and_one_with_order_gets_every_queue(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3)
        )
        broker.services.groups.update_group(
            SubscriptionGroupConfig(group_name="ordered", consume_message_orderly=True)
        )
        seen = {}
        for group in ("plain", "ordered"):
            request = client.make("QueryAssignmentRequest", topic="T", group=group, endpoints=True)
            response = await client.call("QueryAssignment", request)
            assert codes([response.status]) == ["OK"]
            seen[group] = [one.message_queue.id for one in response.assignments]
        assert seen == {"plain": [-1], "ordered": [0, 1, 2]}

    with_client(tmp_path, test)
