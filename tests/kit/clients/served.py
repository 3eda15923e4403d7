"""A broker for client programs: ours, or Apache's with the same settings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.java import JavaTools
from tests.kit.remoting import RemotingClient
from tests.kit.waiting import wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode

SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "autoCreateTopicEnable": "true",
    "brokerName": "labBroker",
}
"""Settings of both brokers. Transactions are checked after 1 s. Delayed messages may be
recalled."""


@dataclass(frozen=True, slots=True)
class Served:
    """Addresses for clients, each `host:port`. The Java broker has no gRPC address. `is_proxy`:
    whether a Java proxy serves gRPC."""

    namesrv: str
    grpc: str = ""
    is_proxy: bool = False


@contextmanager
def our_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run our broker over a new store in `folder`. `settings` are added to SETTINGS."""
    with BrokerProcess(folder, {**SETTINGS, **(settings or {})}) as process:
        yield Served(process.namesrv, process.grpc)
        assert process.stop() == 0, process.log()


@contextmanager
def java_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Run the Java broker, the reference for ours, over a new store in `folder`. Skips the test if
    the Java broker is not installed. `settings` are added to SETTINGS."""
    java = JavaTools.resolve()
    if isinstance(java, str):
        pytest.skip(f"no Java side: {java}")
    # Its own limit of 200 ms refuses sends on a busy machine.
    found = {**SETTINGS, "waitTimeMillsInSendQueue": "30000", **(settings or {})}
    lines = [f"{name}={value}" for name, value in found.items()]
    with java.hold(folder / "store", *lines) as held:
        # On a busy machine its first registration may fail. The next one comes within 30 s.
        wait_for(lambda: asyncio.run(knows_broker(held.namesrv)))
        yield Served(held.namesrv)


async def knows_broker(namesrv: str) -> bool:
    """Return whether the broker has registered with a name server."""
    client = await RemotingClient.open(namesrv)
    try:
        answer = await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    finally:
        await client.close()
    return SETTINGS["brokerName"].encode() in cast("bytes", answer.body)


def find_broker(namesrv: str) -> str:
    """Return the address `ip:port` of the broker that is registered with a name server."""
    return asyncio.run(_find_broker(namesrv))


async def _find_broker(namesrv: str) -> str:
    client = await RemotingClient.open(namesrv)
    try:
        answer = await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    finally:
        await client.close()
    found = re.search(rb'brokerAddrs"\s*:\s*\{\s*"?0"?\s*:\s*"([^"]+)"', answer.body_bytes)
    assert found is not None, answer.body_bytes
    return found[1].decode()


async def knows_topic(namesrv: str, topic: str) -> bool:
    """Return whether a name server has a route to a topic."""
    client = await RemotingClient.open(namesrv)
    try:
        answer = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    finally:
        await client.close()
    return answer.code == ResponseCode.SUCCESS


BROKERS = {"ours": our_broker, "java": java_broker}
