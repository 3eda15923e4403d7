"""Tests of registration with external name servers. A failing name server does not affect the
others."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import orjson
import pytest

from tests.kit.remoting import register_plain, serve, wait_for
from tests.kit.waiting import wait_for as wait_until_done
from tieredstore.broker import turns
from tieredstore.broker.namesrv.route import RouteTable
from tieredstore.broker.remoting import registration as registration_module
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.registration import NameServerRegistration
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.broker.turns import take_parts
from tieredstore.errors import Unavailable
from tieredstore.service_thread import ServiceState
from tieredstore.testing.broker import Broker


class NameServer:
    """Name server that records its requests."""

    def __init__(self) -> None:
        self.registered: list[RemotingCommand] = []
        self.unregistered: list[Mapping[str, str]] = []
        self.code = 0
        self.table = HandlerTable()
        register_plain(self.table, RequestCode.REGISTER_BROKER, self._register)
        register_plain(self.table, RequestCode.UNREGISTER_BROKER, self._unregister)

    def _register(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        self.registered.append(request)
        return RemotingCommand(self.code, remark="no")

    def _unregister(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        self.unregistered.append(request.ext_fields)
        return RemotingCommand(0)

    def topics(self) -> set[str]:
        body = orjson.loads(self.registered[-1].body_bytes)
        return set(body["topicConfigSerializeWrapper"]["topicConfigTable"])


def make(folder: Path, name_servers: str) -> tuple[NameServerRegistration, TopicConfigManager]:
    settings = load_broker_settings(
        {"namesrvAddr": name_servers, "brokerName": "b", "brokerClusterName": "c"}, "test"
    )
    topics = TopicConfigManager(folder, settings)
    groups = SubscriptionGroupManager(folder, settings)
    route = RouteTable(settings, topics, groups, lambda: "10.0.0.1:10911")
    return NameServerRegistration(settings, topics, route), topics


def test_every_name_server_is_told_at_the_start_with_each_new_topic_and_at_the_end(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        first, second = NameServer(), NameServer()
        async with serve(first.table) as (_, one), serve(second.table) as (_, two):
            registration, topics = make(tmp_path, f"{one}; {two}")
            topics.update_topic(TopicConfig(topic_name="t"))
            registration.start()
            await wait_for(lambda: bool(first.registered and second.registered))
            request = first.registered[0]
            assert request.ext_fields == {
                "brokerName": "b",
                "brokerAddr": "10.0.0.1:10911",
                "clusterName": "c",
                "brokerId": "0",
                "haServerAddr": "",
                "enableActingMaster": "false",
                "compressed": "false",
                "bodyCrc32": str(zlib.crc32(request.body_bytes) & 0x7FFFFFFF),
            }
            wrapper = orjson.loads(request.body_bytes)["topicConfigSerializeWrapper"]
            assert wrapper["topicConfigTable"]["t"]["readQueueNums"] == 8
            version = wrapper["dataVersion"]["counter"]
            topics.update_topic(TopicConfig(topic_name="u"))
            await wait_for(lambda: first.topics() == second.topics() == {"t", "u"})
            wrapper = orjson.loads(first.registered[-1].body_bytes)["topicConfigSerializeWrapper"]
            assert wrapper["dataVersion"]["counter"] > version
            assert registration.health().state is ServiceState.RUNNING
            await registration.stop()
            assert [fields["brokerName"] for fields in first.unregistered] == ["b"]
            assert len(second.unregistered) == 1

    asyncio.run(main())


def test_a_large_table_of_topics_is_encoded_in_a_thread_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()

    def count(rows: Iterable[tuple[str, TopicConfig]]) -> Iterator[dict[str, TopicConfig]]:
        for part in take_parts(rows):
            threads.add(threading.get_ident())
            assert len(part) <= 8
            yield part

    monkeypatch.setattr(turns, "PART_ROWS", 8)
    monkeypatch.setattr(registration_module, "take_parts", count)

    async def main() -> None:
        name_server = NameServer()
        async with serve(name_server.table) as (_, address):
            registration, topics = make(tmp_path, address)
            for number in range(50):
                topics.update_topic(TopicConfig(topic_name=f"t{number}", read_queue_nums=number))
            await registration.register()
            body = orjson.loads(name_server.registered[0].body_bytes)
            found = body["topicConfigSerializeWrapper"]["topicConfigTable"]
            assert {name: topic["readQueueNums"] for name, topic in found.items()} == {
                f"t{number}": number for number in range(50)
            }
            await registration.stop()

    asyncio.run(main())
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_name_server_that_is_away_does_not_keep_the_others_from_being_told(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        there, refusing = NameServer(), NameServer()
        refusing.code = 1
        async with serve(there.table) as (_, one), serve(refusing.table) as (_, two):
            registration, _ = make(tmp_path, f"127.0.0.1:1;{two};{one}")
            with pytest.raises(Unavailable) as raised:
                await registration.register()
            assert "127.0.0.1:1" in str(raised.value)
            assert two in str(raised.value)
            assert one not in str(raised.value)
            assert len(there.registered) == 1
            await registration.stop()

    asyncio.run(main())


def test_a_connection_that_ended_is_opened_again(tmp_path: Path) -> None:
    async def main() -> None:
        name_server = NameServer()
        async with serve(name_server.table) as (server, address):
            registration, _ = make(tmp_path, address)
            await registration.register()
            for connection in list(server.connections):
                connection.abort("test")
            (known,) = registration._servers.values()
            await wait_for(lambda: known._connection is not None and not known._connection.is_open)
            await registration.register()
            assert len(name_server.registered) == 2
            await registration.stop()

    asyncio.run(main())


def test_name_servers_may_change_while_the_broker_runs(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = NameServer(), NameServer()
        async with serve(first.table) as (_, one), serve(second.table) as (_, two):
            registration, topics = make(tmp_path, one)
            await registration.register()
            registration._settings.namesrv_addr = two
            await registration.register()
            assert len(first.unregistered) == 1
            assert len(second.registered) == 1
            registration._settings.broker_permission = 4
            topics.update_topic(TopicConfig(topic_name="t"))
            await registration.register()
            body = orjson.loads(second.registered[-1].body_bytes)
            table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
            assert table["t"]["perm"] == 4
            await registration.stop()

    asyncio.run(main())


def test_a_broker_signs_what_it_asks_of_others_of_its_cluster() -> None:
    credentials = {"accessKey": "inner", "secretKey": "inner-secret"}
    guarded = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "innerClientAuthenticationCredentials": json.dumps(credentials),
    }
    inner = {"innerClientAuthenticationCredentials": json.dumps(credentials)}
    wrong = {"innerClientAuthenticationCredentials": json.dumps(credentials | {"secretKey": "x"})}
    with Broker(properties=guarded | {"brokerName": "guarded"}) as server:

        def list_brokers() -> list[object]:
            listed = server.call(lambda: list(server.services.route.others.list_brokers()))
            return [found["brokerName"] for found in listed]

        there = {"namesrvAddr": server.namesrv}
        with Broker(properties={**there, **inner, "brokerName": "b"}):
            wait_until_done(lambda: list_brokers() == ["b"])
            for refused in (wrong, {}):
                with Broker(properties={**there, **refused, "brokerName": "c"}) as other:
                    wait_until_done(functools.partial(is_refused, other))
                    assert list_brokers() == ["b"]
        wait_until_done(lambda: list_brokers() == [])


def is_refused(broker: Broker) -> bool:
    """Return whether the broker's registration with its name servers has failed."""
    states = {health.name: health.state for health in broker.broker.health()}
    return states["NameServerRegistration"] is ServiceState.FAILED
