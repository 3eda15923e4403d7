"""Tests of QueryRoute and QueryAssignment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import list_values
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig

PERMISSIONS = list_values("Permission")
TYPES = list_values("MessageType")


def with_client(
    root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]], **properties: str
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
            TopicConfig(
                topic_name="T",
                read_queue_nums=2,
                write_queue_nums=3,
                attributes={"message.type": "MIXED"},
            )
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
        for name in ("FIFO", "PRIORITY"):
            broker.services.topics.update_topic(
                TopicConfig(topic_name="T", attributes={"message.type": name})
            )
            response = await client.call("QueryRoute", route(client, "T"))
            assert list(response.message_queues[0].accept_message_types) == [TYPES[name]]
        broker.services.topics.update_topic(TopicConfig(topic_name="T"))
        response = await client.call("QueryRoute", route(client, "T"))
        assert list(response.message_queues[0].accept_message_types) == [TYPES["NORMAL"]]

    with_client(tmp_path, test)


def test_an_unknown_topic_is_made_where_a_key_says_so(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, "new"))
        assert codes([response.status]) == ["OK"]
        assert len(response.message_queues) == 8
        made = broker.services.topics.find_topic("new")
        assert made is not None
        assert made.attributes == {"message.type": "MIXED"}

    with_client(tmp_path, test)


@pytest.mark.parametrize("key", ["autoCreateTopicEnable", "autoCreateMixedTopics"])
def test_an_unknown_topic_is_not_found_otherwise(tmp_path: Path, key: str) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, "new"))
        assert codes([response.status]) == ["TOPIC_NOT_FOUND"]
        assert broker.services.topics.find_topic("new") is None

    with_client(tmp_path, test, **{key: "false"})


def test_a_light_queue_has_no_route_and_is_not_made(tmp_path: Path) -> None:
    """As in Java's proxy, a light queue has no route. The request does not create a topic."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        for name in ("%LMQ%x", "%LMQ%$parent$lite"):
            response = await client.call("QueryRoute", route(client, name))
            assert codes([response.status]) == ["TOPIC_NOT_FOUND"]
            assert broker.services.topics.find_topic(name) is None

    with_client(tmp_path, test, enableLmq="true", enableMultiDispatch="true")


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


def test_s81_what_a_route_repeats_for_each_queue_is_limited(tmp_path: Path) -> None:
    """The size of fields that a route repeats for each queue is limited. Otherwise a request of 4
    MB could produce a reply of gigabytes."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.topics.update_topic(TopicConfig(topic_name="T"))
        for method in ("QueryRoute", "QueryAssignment"):
            request = client.make(f"{method}Request", topic="T", endpoints=True)
            if method == "QueryAssignment":
                request.group.name = "G"
            request.topic.resource_namespace = "n" * 255
            response = await client.call(method, request)
            assert codes([response.status]) == ["OK"]
            queues = getattr(response, "message_queues", None) or [
                one.message_queue for one in response.assignments
            ]
            assert {queue.topic.resource_namespace for queue in queues} == {"n" * 255}
            request.topic.resource_namespace = "n" * 1_000_000
            response = await client.call(method, request)
            assert codes([response.status]) == ["OK"]
            assert response.ByteSize() < 10_000
            for _ in range(200):
                request.endpoints.addresses.add(host="127.0.0.1", port=8081)
            response = await client.call(method, request)
            assert codes([response.status]) == ["ILLEGAL_ACCESS_POINT"]
            assert response.ByteSize() < 1_000

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


@pytest.mark.parametrize("topic", ["rmq_sys_foo", "rmq_sys_DELETED_TOPICS", "CHECKPOINT_TOPIC"])
def test_i30_a_route_makes_no_topic_of_the_broker(tmp_path: Path, topic: str) -> None:
    """A route request never creates a topic whose name is reserved for the broker."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("QueryRoute", route(client, topic))
        assert codes([response.status]) == ["TOPIC_NOT_FOUND"]
        assert broker.services.topics.find_topic(topic) is None
        known = await client.call("QueryRoute", route(client, "SELF_TEST_TOPIC"))
        assert codes([known.status]) == ["OK"]

    with_client(tmp_path, test)
