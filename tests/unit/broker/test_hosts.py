"""No single client host can exhaust a limit of the broker. What a host has used is released
afterwards."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kit.remoting import wait_for
from tieredstore.broker.background import LookUps
from tieredstore.broker.clients.consumers import RebalanceLocks
from tieredstore.broker.grpc.protocol import Call, Rejected
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.hosts import HOST, HostShares, name_host
from tieredstore.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from tieredstore.broker.namesrv.registered import RegisteredBrokers, Registration
from tieredstore.broker.ports import CLIENTS
from tieredstore.broker.pull import PullHold
from tieredstore.broker.receive import polls as polls_module
from tieredstore.broker.receive.polls import ParkedPolls, PollKey
from tieredstore.broker.refused import Refused
from tieredstore.broker.remoting.connection import BufferedBytes, Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.server import RemotingServer
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Busy, Invalid


@contextmanager
def on_host(host: str) -> Iterator[None]:
    token = HOST.set(host)
    try:
        yield
    finally:
        HOST.reset(token)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:db8::1]:80", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("", ""),
        ("x:y:z", "x:y:z"),
    ],
)
def test_a_network_of_ipv6_is_one_host(address: str, host: str) -> None:
    assert name_host(address) == host


def fill(shares: HostShares, host: str) -> int:
    count = 0
    while shares.take(host):
        count += 1
    return count


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 100, 10_000])
def test_i03_some_places_are_left_for_other_hosts(limit: int) -> None:
    shares = HostShares(limit)
    first = fill(shares, "a")
    assert first == (limit if limit < 4 else limit * 3 // 4)
    for number in range(5 if limit > 100 else 0):
        assert fill(shares, f"b{number}") > 0
    while shares.take(""):  # the broker's own work has the whole limit
        pass
    assert shares.total == limit
    shares.give_back("a", first)
    assert shares.total == limit - first


def test_many_places_are_taken_together_or_not_at_all() -> None:
    shares = HostShares(100)
    assert not shares.take("a", 76)
    assert shares.take("a", 75)
    assert not shares.take("a")
    assert shares.take("b", 18)


def count_until_refused(call: Callable[[int], object], refusal: type[Exception]) -> int:
    """Call a function with 0, 1, … until it refuses. Return the number of successful calls."""
    for number in range(100):
        try:
            call(number)
        except refusal as error:
            assert "no further one" in str(error) or "quota exceeded" in str(error)  # noqa: PT017
            return number
    raise AssertionError("nothing is refused")


def test_i03_one_host_does_not_take_all_telemetry_streams() -> None:
    sessions = Sessions(max_sessions=8)

    def open_one(host: str) -> None:
        sessions.open(Call({"x-mq-client-id": "c"}, f"{host}:1", None))

    async def run() -> None:
        assert count_until_refused(lambda _: open_one("10.0.0.1"), Rejected) == 6
        open_one("10.0.0.2")
        for session in list(sessions._sessions):
            sessions.close(session)
            sessions.close(session)
        assert sessions._shares.total == 0

    asyncio.run(run())


def test_i03_one_host_does_not_take_all_waits() -> None:
    async def run() -> None:
        hold = PullHold(8)
        polls = ParkedPolls(PullHold())
        polls._shares = HostShares(8)
        with ExitStack() as stack:
            enter = stack.enter_context
            with on_host("a"):
                queues = (QueueKey("T", number) for number in range(100))
                assert count_until_refused(lambda _: enter(hold.watch(next(queues))), Busy) == 6
                assert (
                    count_until_refused(lambda _: enter(polls.park(PollKey("G", "T"))), Busy) == 6
                )
            with on_host("b"):
                assert polls.has_room(PollKey("G", "T"))
                enter(hold.watch(QueueKey("T", 0)))
                enter(polls.park(PollKey("G", "T")))
        assert hold.count == polls.count == 0

    asyncio.run(run())


def test_i03_one_host_does_not_take_all_waits_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls_module, "MAX_WAITING_OF_QUEUE", 8)

    async def run() -> None:
        polls, key = ParkedPolls(PullHold()), PollKey("G", "T", 0)
        with ExitStack() as stack:
            enter = stack.enter_context
            with on_host("a"):
                assert count_until_refused(lambda _: enter(polls.park(key)), Busy) == 6
                assert not polls.has_room(key)
                enter(polls.park(key._replace(queue_id=1)))
            for host in ("b", "c"):
                with on_host(host):
                    enter(polls.park(key))
            with on_host("d"):
                assert not polls.has_room(key)
        assert polls.count == 0
        assert polls.has_room(key)

    asyncio.run(run())


def test_i03_one_host_does_not_take_all_look_ups() -> None:
    async def run() -> None:
        go_on = threading.Event()
        look_ups = LookUps(threads=1, max_calls=8)
        calls = []
        with on_host("a"):
            calls += [asyncio.create_task(look_ups.run(go_on.wait)) for _ in range(8)]
        await asyncio.sleep(0.01)
        with on_host("b"):
            calls.append(asyncio.create_task(look_ups.run(go_on.wait)))
        await asyncio.sleep(0.01)
        go_on.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[:6] == [True] * 6
        assert results[8] is True
        assert all(isinstance(one, Busy) for one in results[6:8])
        assert await asyncio.to_thread(look_ups.stop)

    asyncio.run(run())


def test_i03_one_host_does_not_take_all_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.broker.clients.consumers.MAX_LOCKS", 8)
    locks = RebalanceLocks()
    queues = [QueueKey("T", number) for number in range(8)]
    with on_host("a"):
        assert len(locks.lock("G", queues, "c")) == 6
        assert len(locks.lock("G", queues, "c")) == 6  # renewed
    with on_host("b"):
        assert len(locks.lock("H", queues, "d")) > 0
    locks.unlock("G", queues, "c")
    locks.unlock("H", queues, "d")
    assert locks._shares.total == 0


class Peer:
    """Stand-in for a host's connection, with the members that `BufferedBytes` uses."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.reason = ""

    def abort(self, reason: str) -> None:
        self.reason = reason


def test_i03_many_connections_of_a_host_do_not_close_that_of_another() -> None:
    buffered = BufferedBytes(100)
    many = [Peer("a") for _ in range(10)]
    one = Peer("b")
    buffered.hold(cast("Connection", one), 20)
    for number, peer in enumerate(many):
        buffered.hold(cast("Connection", peer), 9 + number % 2)
    assert not one.reason
    assert sum(bool(peer.reason) for peer in many) == 2
    assert buffered.total_bytes <= 100


def test_i03_one_host_does_not_register_all_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.broker.namesrv.registered.MAX_BROKERS", 8)
    brokers = RegisteredBrokers(SYSTEM_CLOCK)

    def register(number: int, host: str) -> None:
        session: Any = SimpleNamespace(address=f"{host}:{number}")
        new = Registration(
            cluster="C",
            name=f"b{number}",
            address=f"{host}:{number}",
            broker_id=0,
            version=DataVersion(),
            topics={},
        )
        brokers.register(new, session)

    assert count_until_refused(lambda number: register(number, "10.0.0.1"), Invalid) == 6
    register(9, "10.0.0.2")
    register(0, "10.0.0.1")  # again


def test_i03_one_host_does_not_take_all_lite_subscriptions(tmp_path: Path) -> None:
    settings = BrokerSettings(max_lite_subscription_count=8)
    groups = SubscriptionGroupManager(tmp_path, settings, SYSTEM_CLOCK)
    groups.update_group(SubscriptionGroupConfig(group_name="G"))
    subscriptions = LiteSubscriptions(settings, groups, SYSTEM_CLOCK)
    client, other = LiteClient("G", "c"), LiteClient("G", "d")
    names = [f"n{number}" for number in range(8)]
    with on_host("a"):
        with pytest.raises(Refused, match="quota exceeded"):
            subscriptions.add(client, "P", names, print)
        subscriptions.add(client, "P", names[:6], print)
        with pytest.raises(Refused, match="quota exceeded"):
            subscriptions.add(client, "P", names[6:7], print)
    with on_host("b"):
        subscriptions.add(other, "P", names[:1], print)
    assert subscriptions.count == 7
    subscriptions.end(client)
    subscriptions.end(other)
    assert subscriptions.count == subscriptions._hosts.total == 0


def test_i03_one_host_does_not_take_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CLIENTS.total
    for name in ("remoting", "grpc"):
        monkeypatch.setattr(
            f"tieredstore.broker.{name}.server.count_room",
            lambda _: 8 - (CLIENTS.total - before),
        )

    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        server = RemotingServer(HandlerTable())
        await server.start(listening)
        port = listening.getsockname()[1]

        async def connect(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))

        many = [await connect("127.0.0.2") for _ in range(8)]
        await wait_for(lambda: CLIENTS.total - before == 6)
        for reader, _ in many[6:]:
            assert await reader.read() == b""
        _, writer = await connect("127.0.0.3")
        await wait_for(lambda: CLIENTS.total - before == 7)
        writer.write(b"\0\0")  # the begin of a frame
        many[0][1].write(b"\0\0")
        await wait_for(lambda: len(server.connections) == 2)
        assert CLIENTS.total - before == 7
        writer.close()
        many[1][1].close()
        await wait_for(lambda: CLIENTS.total - before == 5)
        await server.stop()
        assert CLIENTS.total == before
        for _, other in many:
            other.close()

    asyncio.run(run())
