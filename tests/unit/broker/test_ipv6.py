"""A broker at an IPv6 address serves clients of both protocols."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import grpc.aio
import orjson
import pytest

from tests.kit.grpc_types import find_message, list_values
from tests.kit.remoting import RemotingClient
from tieredstore.broker.grpc.message_types import SERVICE_NAME, find_class, list_methods
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.cli.remote import BrokerClient
from tieredstore.message.record import decode_record
from tieredstore.testing.broker import Broker


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture(scope="module", params=["::1", "[::1]"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"bindAddress": request.param, "brokerIP1": request.param}
    with Broker(properties=settings) as broker:
        yield broker


def test_all_addresses_have_brackets(broker: Broker) -> None:
    for address in broker.addresses.values():
        assert address.startswith("[::1]:")
        assert address.removeprefix("[::1]:").isdigit()


def test_a_remoting_client_sends_finds_the_route_and_views_by_id(broker: Broker) -> None:
    with BrokerClient(broker.namesrv) as client:
        client.send("six", b"hello", {})

    async def ask() -> None:
        async with await RemotingClient.open(broker.namesrv) as client:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            route = orjson.loads((await client.request(code, {"topic": "six"})).body_bytes)
            [named] = route["brokerDatas"]
            [address] = named["brokerAddrs"].values()
            assert address == broker.remoting
        async with await RemotingClient.open(address) as client:
            found = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0})
            assert found.code == ResponseCode.SUCCESS
            message = decode_record(found.body_bytes)
            assert bytes(message.body) == b"hello"
            assert len(message.offset_message_id) == 56
            assert message.store_host == address.replace("::1", "0:0:0:0:0:0:0:1")

    asyncio.run(ask())


def test_a_grpc_client_is_given_the_endpoints_that_it_named(broker: Broker) -> None:
    port = int(broker.grpc.rpartition(":")[2])
    request = find_message("QueryRouteRequest")()
    request.topic.name = "by_grpc"
    request.endpoints.scheme = list_values("AddressScheme")["IPv6"]
    request.endpoints.addresses.add(host="::1", port=port)

    async def ask() -> None:
        method = {method.name: method for method in list_methods()}["QueryRoute"]
        async with grpc.aio.insecure_channel(f"ipv6:{broker.grpc}") as channel:
            call = channel.unary_unary(
                f"/{SERVICE_NAME}/QueryRoute",
                request_serializer=find_class(method.input_type).SerializeToString,
                response_deserializer=find_class(method.output_type).FromString,
            )
            metadata = (("x-mq-client-id", "c"), ("x-mq-language", "HTTP"))
            response: Any = await call(request, timeout=20, metadata=metadata)
        assert response.message_queues
        assert response.message_queues[0].broker.endpoints == request.endpoints

    asyncio.run(ask())
