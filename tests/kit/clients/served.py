"""A broker for client programs: ours, or the published Java broker, with the same settings."""

from __future__ import annotations

import asyncio
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
from tieredstore.broker.remoting.codes import RequestCode

SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "autoCreateTopicEnable": "true",
    "brokerName": "labBroker",
}
"""Transactions are checked back after 1 s; delayed messages may be recalled."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where clients connect: `host:port` of each; no gRPC at the Java broker."""

    namesrv: str
    grpc: str = ""


@contextmanager
def our_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Our broker over a new store in `folder`. settings: beside SETTINGS."""
    with BrokerProcess(folder, {**SETTINGS, **(settings or {})}) as process:
        yield Served(process.namesrv, process.grpc)
        assert process.stop() == 0, process.log()


@contextmanager
def java_broker(folder: Path) -> Iterator[Served]:
    """The Java broker over a new store in `folder`: the measure of our tests. Skips without it."""
    java = JavaTools.resolve()
    if isinstance(java, str):
        pytest.skip(f"no Java side: {java}")
    # Its own limit of 200 ms refuses sends on a busy machine.
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    settings.append("waitTimeMillsInSendQueue=30000")
    with java.hold(folder / "store", *settings) as held:
        # On a busy machine its first registration may fail; the next one comes within 30 s.
        wait_for(lambda: asyncio.run(_knows_broker(held.namesrv)))
        yield Served(held.namesrv)


async def _knows_broker(namesrv: str) -> bool:
    client = await RemotingClient.open(namesrv)
    try:
        answer = await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    finally:
        await client.close()
    return SETTINGS["brokerName"].encode() in cast("bytes", answer.body)


BROKERS = {"ours": our_broker, "java": java_broker}
