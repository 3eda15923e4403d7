"""A broker has an IPv6 address. Its colons must not be read as separators."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.power_cut.load import send
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.errors import Invalid
from tieredstore.testing import Broker

QUESTIONS = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC)


@pytest.mark.parametrize("address", ["fd00::1:7a", "[fd00::1:7a]"])
def test_routes_and_clusters_have_the_address_in_brackets(tmp_path: Path, address: str) -> None:
    settings = {"brokerIP1": address, "bindAddress": "127.0.0.1"}
    with Broker(folder=tmp_path, properties=settings) as broker:
        port = broker.remoting.rsplit(":", 1)[1]
        assert broker.remoting == f"[fd00::1:7a]:{port}"

        async def ask() -> None:
            async with await RemotingClient.open(f"127.0.0.1:{port}") as client:
                assert (await send(client, "T", b"x", {}))[0] == 0
                for code in (
                    RequestCode.GET_BROKER_CLUSTER_INFO,
                    RequestCode.GET_ROUTEINFO_BY_TOPIC,
                ):
                    told = await client.request(code, {"topic": "T"})
                    assert f'"[fd00::1:7a]:{port}"'.encode() in bytes(told.body_bytes)

        asyncio.run(asyncio.wait_for(ask(), 30))


@pytest.mark.parametrize("address", ["fe80::1%eth0", "localhost", "127.0.0.1:10911", ""])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    with (
        pytest.raises(Invalid, match="expected an IPv4 or IPv6 address"),
        Broker(folder=tmp_path, properties={"brokerIP1": address}),
    ):
        pass
