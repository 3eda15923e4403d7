"""A broker is started and stopped in order, and what it acknowledged is there again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tieredstore.broker.broker import Broker
from tieredstore.contracts.message_store import HostedStore
from tieredstore.errors import Fenced
from tieredstore.message.record import Message


def make(root: Path, **keys: str) -> Broker:
    properties = {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "131072",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsPromExporterPort": "0",
        **keys,
    }
    return Broker.from_properties(properties, origin="broker.conf")


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    async def put() -> None:
        broker = make(tmp_path)
        await broker.start()
        assert isinstance(broker.services.store, HostedStore)
        result = await broker.services.store.put_message_async(Message.create("orders", b"one"))
        assert result.ok
        await broker.stop()
        await broker.stop()

    async def read() -> bytes:
        broker = make(tmp_path)
        await broker.start()
        found = await broker.services.store.get_message_async("g", "orders", 0, 0, 32)
        body = bytes(found.messages[0].body)
        await broker.stop()
        return body

    asyncio.run(put())
    assert not (tmp_path / "abort").exists()
    assert asyncio.run(read()) == b"one"


def test_a_broker_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    async def run() -> None:
        first = make(tmp_path)
        await first.start()
        second = make(tmp_path)
        with pytest.raises(Fenced):
            await second.start()
        await first.stop()
        await (third := make(tmp_path)).start()
        await third.stop()

    asyncio.run(run())
