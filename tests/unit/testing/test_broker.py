"""Tests of the broker for applications' own tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.kit.paths import ROOT
from tests.kit.waiting import wait_for
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.pull import PullRequest
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.cli.remote import BrokerClient
from tieredstore.errors import Unavailable
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.testing import Broker

HOUR_S = 3600


def put(broker: Broker, count: int) -> None:
    async def put_all() -> None:
        for number in range(count):
            message = Message.create("orders", b"%d" % number)
            assert (await broker.services.store.put_message_async(message)).ok

    broker.run(put_all())


def read(broker: Broker) -> list[bytes]:
    found = broker.services.store.get_message("g", "orders", 0, 0, 1000)
    return [bytes(message.body) for message in found.messages]


def fetch(broker: Broker, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{broker.addresses['metrics']}{path}", timeout=30) as found:
        data: bytes = found.read()
    return data


def test_a_stopped_broker_goes_on_with_what_it_had() -> None:
    with Broker() as broker:
        folder = broker.folder
        put(broker, 5)
        broker.stop()
        broker.start()
        assert read(broker) == [b"%d" % number for number in range(5)]
    assert not folder.exists()


def test_a_start_that_takes_too_long_says_where_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    load, run, give_up = DefaultMessageStore.load, Broker.run, Broker._give_up

    def load_slowly(store: DefaultMessageStore) -> None:
        begun.set()
        assert go_on.wait(60)
        load(store)

    def run_from_there(broker: Broker, work: Any, timeout: float | None = None) -> Any:
        assert timeout is None or begun.wait(60)  # the time counts from the load on
        return run(broker, work, timeout)

    def go_on_and_give_up(broker: Broker, starting: Any) -> None:
        go_on.set()
        give_up(broker, starting)

    with monkeypatch.context() as patch:
        patch.setattr(DefaultMessageStore, "load", load_slowly)
        patch.setattr(Broker, "run", run_from_there)
        patch.setattr(Broker, "_give_up", go_on_and_give_up)
        patch.setattr("tieredstore.testing.broker.START_SECONDS", 0.1)
        with pytest.raises(Unavailable, match=rf"{tmp_path}: .*in Broker\.start .*_open_store"):
            broker.start()
    with broker:  # its store is unlocked
        put(broker, 1)
        assert broker.flush_tier() == 1


def test_flush_tier_uploads_all_and_health_and_metrics_say_so() -> None:
    with Broker() as broker:
        put(broker, 7)
        before = orjson.loads(fetch(broker, "/health"))
        assert before["status"] == "up"
        assert broker.flush_tier() == 7
        after = orjson.loads(fetch(broker, "/health"))
        assert after["tier"]["behind_messages"] == 0
        assert after["tier"]["size_bytes"] > 0
        metrics = fetch(broker, "/metrics").decode()
        assert "rocketmq_tiered_store_messages_dispatch_total{" in metrics
        assert 'topic="orders"' in metrics


def test_the_lag_of_a_group_is_told_until_its_topic_goes() -> None:
    with Broker() as broker:
        put(broker, 7)
        services = broker.services
        services.store.next_store.wait_until_dispatched()  # type: ignore[attr-defined]
        broker.call(lambda: services.topics.create_on_send_back("orders", 1))
        broker.call(lambda: services.offsets.commit_offset("g", "orders", 0, 3))
        lines = fetch(broker, "/metrics").decode().splitlines()
        [lag] = [line for line in lines if line.startswith("rocketmq_consumer_lag_messages{")]
        assert 'consumer_group="g"' in lag
        assert float(lag.rsplit(" ", 1)[1]) == 4
        broker.call(lambda: services.topics.delete_topic("orders"))
        assert "rocketmq_consumer_lag_messages{" not in fetch(broker, "/metrics").decode()


def test_what_went_out_is_counted_until_its_topic_goes() -> None:
    with Broker() as broker:
        put(broker, 7)
        services = broker.services
        services.store.next_store.wait_until_dispatched()  # type: ignore[attr-defined]
        broker.call(lambda: services.topics.create_on_send_back("orders", 1))
        request = PullRequest("g", "orders", 0, 0, Subscription("orders"))
        assert len(broker.run(services.puller.pull(request)).messages) == 7
        lines = fetch(broker, "/metrics").decode().splitlines()
        [out] = [line for line in lines if line.startswith("rocketmq_messages_out_total{")]
        assert 'consumer_group="g"' in out
        assert float(out.rsplit(" ", 1)[1]) == 7
        broker.call(lambda: services.topics.delete_topic("orders"))
        assert "rocketmq_messages_out_total{" not in fetch(broker, "/metrics").decode()


def test_time_that_is_advanced_ends_waits_of_the_loop() -> None:
    with Broker() as broker:
        before_ms = broker.services.clock.now_ms()
        waiting = asyncio.run_coroutine_threadsafe(asyncio.sleep(HOUR_S), broker._loop)  # type: ignore[arg-type]
        broker.call(lambda: None)
        broker.advance(seconds=HOUR_S + 1)
        waiting.result(30)
        assert broker.services.clock.now_ms() - before_ms >= HOUR_S * 1000


def test_a_delayed_message_comes_when_its_time_was_advanced_to() -> None:
    with Broker() as broker, BrokerClient(broker.remoting) as client:
        for level, delay in (("DELAY", "16"), ("TIMER_DELAY_SEC", "3600")):
            client.send(f"late_{level}", b"late", {level: delay})
        broker.advance(seconds=1500)
        assert not count(client, "late_DELAY")
        broker.advance(seconds=301)  # level 16: 30 minutes
        wait_for(lambda: count(client, "late_DELAY") == 1)
        assert not count(client, "late_TIMER_DELAY_SEC")
        broker.advance(seconds=1801)
        wait_for(lambda: count(client, "late_TIMER_DELAY_SEC") == 1)


def count(client: BrokerClient, topic: str) -> int:
    code = RequestCode.GET_MAX_OFFSET
    return sum(client.find_offset(code, topic, queue) for queue in client.find_queues(topic))


def test_the_fixture_gives_each_test_a_broker_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(
        "seen = set()\n\n\n"
        "def test_one(rocketmq_broker):\n    seen.add(rocketmq_broker.namesrv)\n\n\n"
        "def test_two(rocketmq_broker):\n    assert rocketmq_broker.folder.exists()\n"
    )
    plugin = "tieredstore.testing.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
