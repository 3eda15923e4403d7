"""A broker starts and stops its components in order, and keeps all acknowledged data."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore.broker.broker import Broker
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.message_store import HostedStore
from tieredstore.errors import Fenced
from tieredstore.message.encoding import Message


def properties_of(root: Path) -> dict[str, str]:
    return {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "131072",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsPromExporterPort": "0",
    }


def make(root: Path, **keys: str) -> Broker:
    return Broker.from_properties({**properties_of(root), **keys}, origin="broker.conf")


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


def test_a_start_names_the_topics_that_take_normal_messages_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(**keys: str) -> list[str]:
        caplog.clear()
        broker = make(tmp_path, **keys)
        await broker.start()
        for name in ("orders", *(f"more{number}" for number in range(5))):
            broker.services.topics.update_topic(TopicConfig(topic_name=name))
        broker.services.topics.update_topic(
            TopicConfig(topic_name="any", attributes={"message.type": "MIXED"})
        )
        await broker.stop()
        return [text for text in caplog.messages if "message.type" in text]

    with caplog.at_level("INFO"):
        assert asyncio.run(run()) == []  # a new broker has no topics of clients
        [line] = asyncio.run(run())
        assert line.startswith("over gRPC, 6 topics take normal messages only")
        assert ": more0, more1, more2, more3, more4, …. `mqadmin" in line
        assert asyncio.run(run(enableTopicMessageTypeCheck="false")) == []


def test_a_broker_in_a_process_of_others_leaves_the_search_for_cycles_alone(
    tmp_path: Path,
) -> None:
    async def count_excluded() -> int:
        broker = make(tmp_path)
        await broker.start()
        excluded = gc.get_freeze_count()
        await broker.stop()
        return excluded

    before = gc.get_freeze_count()
    assert asyncio.run(count_excluded()) == gc.get_freeze_count() == before


SERVING = """
import gc, os, signal, sys
from tieredstore.broker.broker import Broker
from tieredstore.broker.process import run_broker

def announce(broker):
    print(gc.get_freeze_count())
    os.kill(os.getpid(), signal.SIGTERM)

keys = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run_broker(lambda: Broker.from_properties(keys, origin="test"), announce)
"""


def test_a_broker_of_its_own_process_excludes_what_it_loaded_from_the_search_for_cycles(
    tmp_path: Path,
) -> None:
    keys = [text for pair in properties_of(tmp_path).items() for text in pair]
    done = subprocess.run(
        [sys.executable, "-c", SERVING, *keys], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 10_000
