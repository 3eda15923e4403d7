"""Other brokers can use our broker as their name server."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.kit.remoting import RemotingClient
from tests.kit.waiting import wait_for
from tieredstore.broker.broker import Broker as ServedBroker
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.message.crc import crc32
from tieredstore.testing.broker import Broker

OTHER = {
    "brokerName": "broker-b",
    "brokerAddr": "10.0.0.2:10911",
    "clusterName": "cluster-a",
    "brokerId": 0,
}
VERSION = {"stateVersion": 0, "timestamp": 5, "counter": 7}


class Other:
    """Connection of another broker. `hang_up` closes it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        opening = RemotingClient.open(broker.namesrv)
        self._client: RemotingClient = self._loop.run_until_complete(opening)

    def ask(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return self._loop.run_until_complete(self._client.request(code, fields, body))

    def register(self, *topics: dict[str, Any], **fields: object) -> RemotingCommand:
        wrapper = {
            "dataVersion": VERSION,
            "topicConfigTable": {topic["topicName"]: topic for topic in topics},
            "topicQueueMappingInfoMap": {},
        }
        body = orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        said = {**OTHER, "bodyCrc32": crc32(body), "compressed": False, "haServerAddr": "h:1"}
        return self.ask(RequestCode.REGISTER_BROKER, {**said, **fields}, body)

    def find_route(self, topic: str) -> dict[str, Any] | None:
        response = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert response.code == ResponseCode.SUCCESS, response.remark
        route: dict[str, Any] = orjson.loads(response.body_bytes)
        return route

    def list_topics(self, code: int, **fields: object) -> set[str]:
        return set(orjson.loads(self.ask(code, fields).body_bytes)["topicList"])

    def hang_up(self) -> None:
        self._client.connection.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


def topic(name: str, *, queues: int = 3, perm: int = 6, flag: int = 0) -> dict[str, Any]:
    """Return a TopicConfig in Java's format."""
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": flag,
        "order": False,
        "attributes": {},
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(properties={"brokerName": "broker-a", "brokerClusterName": "cluster-a"}) as started:
        yield started


@pytest.fixture
def other(broker: Broker) -> Iterator[Other]:
    """Yield another broker's connection. The broker's registrations are deleted after the test."""
    made = Other(broker)
    yield made
    made.hang_up()
    wait_for(lambda: not broker.call(lambda: list(broker.services.route.others.list_brokers())))


def test_topics_of_another_broker_have_a_route(other: Other) -> None:
    assert other.register(topic("theirs"), topic("TBW102", queues=2)).code == ResponseCode.SUCCESS
    theirs = other.find_route("theirs")
    assert theirs is not None
    assert theirs["brokerDatas"] == [
        {
            "brokerAddrs": {"0": "10.0.0.2:10911"},
            "brokerName": "broker-b",
            "cluster": "cluster-a",
            "enableActingMaster": False,
        }
    ]
    assert theirs["queueDatas"] == [
        {
            "brokerName": "broker-b",
            "perm": 6,
            "readQueueNums": 3,
            "topicSysFlag": 0,
            "writeQueueNums": 3,
        }
    ]
    both = other.find_route("TBW102")
    assert both is not None
    assert [found["brokerName"] for found in both["brokerDatas"]] == ["broker-a", "broker-b"]
    assert [found["readQueueNums"] for found in both["queueDatas"]] == [8, 2]
    clusters = orjson.loads(other.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body_bytes)
    assert clusters["clusterAddrTable"] == {"cluster-a": ["broker-a", "broker-b"]}
    assert other.list_topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
        "broker-a",
        "broker-b",
        "cluster-a",
    }
    assert "theirs" in other.list_topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "theirs" in other.list_topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="cluster-a")


def test_a_broker_that_says_goodbye_is_forgotten(other: Other) -> None:
    other.register(topic("theirs"))
    assert other.ask(RequestCode.UNREGISTER_BROKER, dict(OTHER)).code == ResponseCode.SUCCESS
    assert other.find_route("theirs") is None
    assert other.ask(RequestCode.UNREGISTER_BROKER, dict(OTHER)).code == ResponseCode.SUCCESS


def test_a_broker_whose_connection_ends_is_forgotten(broker: Broker, other: Other) -> None:
    passing = Other(broker)
    passing.register(topic("theirs"))
    assert other.find_route("theirs") is not None
    passing.hang_up()
    wait_for(lambda: other.find_route("theirs") is None)


def test_a_broker_that_is_silent_is_forgotten(broker: Broker, other: Other) -> None:
    other.register(topic("theirs"))
    other.register(
        topic("brief"), brokerName="broker-c", brokerAddr="c:1", heartbeatTimeoutMillis=9
    )
    served = broker.broker
    broker.advance(seconds=119)
    broker.run(ServedBroker.remove_silent(served))
    assert other.find_route("brief") is None
    assert other.ask(RequestCode.BROKER_HEARTBEAT, dict(OTHER)).code == ResponseCode.SUCCESS
    broker.advance(seconds=119)
    broker.run(ServedBroker.remove_silent(served))
    assert other.find_route("theirs") is not None
    broker.advance(seconds=2)
    broker.run(ServedBroker.remove_silent(served))
    assert other.find_route("theirs") is None


def test_a_broker_asks_whether_its_topics_are_known(other: Other) -> None:
    def ask(version: dict[str, int]) -> tuple[str, bytes]:
        response = other.ask(RequestCode.QUERY_DATA_VERSION, dict(OTHER), orjson.dumps(version))
        return response.ext_fields["changed"], response.body_bytes

    assert ask(VERSION) == ("true", b"")
    other.register(topic("theirs"))
    assert ask(VERSION)[0] == "false"
    changed, known = ask({**VERSION, "counter": 8})
    assert (changed, orjson.loads(known)) == ("true", VERSION)


def test_a_slave_learns_where_its_master_is(other: Other) -> None:
    other.register(topic("theirs"))
    slave = {"brokerId": 1, "brokerAddr": "10.0.0.3:10911", "haServerAddr": "h:2"}
    answer = other.register(topic("of the slave"), **slave)
    assert answer.ext_fields == {"masterAddr": "10.0.0.2:10911", "haServerAddr": "h:1"}
    assert other.find_route("of the slave") is None
    members = other.ask(RequestCode.GET_BROKER_MEMBER_GROUP, dict(OTHER))
    assert orjson.loads(members.body_bytes)["brokerMemberGroup"] == {
        "brokerAddrs": {"0": "10.0.0.2:10911", "1": "10.0.0.3:10911"},
        "brokerName": "broker-b",
        "cluster": "cluster-a",
    }
    route = other.find_route("theirs")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"].keys() == {"0", "1"}


def test_a_master_that_moved_replaces_its_address(other: Other) -> None:
    other.register(topic("theirs"))
    other.register(topic("theirs"), brokerAddr="10.0.0.9:10911")
    route = other.find_route("theirs")
    assert route is not None
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.9:10911"}


def test_the_name_of_this_broker_stays_its_own(broker: Broker, other: Other) -> None:
    refused = other.register(topic("theirs"), brokerName="broker-a")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "broker-a" in (refused.remark or "")
    itself = other.register(topic("theirs"), brokerName="broker-a", brokerAddr=broker.remoting)
    assert itself.code == ResponseCode.SUCCESS
    assert other.find_route("theirs") is None


def test_a_damaged_table_is_refused(other: Other) -> None:
    assert other.register(topic("theirs"), bodyCrc32=1).remark == "crc32 not match"
    for body, compressed in (
        (b"{", False),
        (b"[]", False),
        (b"{", True),
        (zlib.compress(b"a"), True),
    ):
        fields = {**OTHER, "compressed": compressed}
        refused = other.ask(RequestCode.REGISTER_BROKER, fields, body)
        assert refused.code == ResponseCode.INVALID_PARAMETER, body
    bomb = zlib.compress(bytes(65 * 1024 * 1024))
    refused = other.ask(RequestCode.REGISTER_BROKER, {**OTHER, "compressed": True}, bomb)
    assert refused.code == ResponseCode.INVALID_PARAMETER


def test_a_table_may_be_packed(other: Other) -> None:
    def part(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    table = part(orjson.dumps(VERSION)) + (2).to_bytes(4, "big")
    table += part(b"packed 4 5 6 SINGLE_TAG {}") + part(b"old 1 1 4 SINGLE_TAG")
    body = zlib.compress(table + part(b"[]") + bytes(4))
    fields = {**OTHER, "compressed": True, "bodyCrc32": crc32(body)}
    assert other.ask(RequestCode.REGISTER_BROKER, fields, body).code == ResponseCode.SUCCESS
    route = other.find_route("packed")
    assert route is not None
    assert (route["queueDatas"][0]["readQueueNums"], route["queueDatas"][0]["perm"]) == (4, 6)
    assert other.find_route("old") is not None


def test_topics_of_units_are_listed(other: Other) -> None:
    other.register(topic("unit", flag=1), topic("subscribed", flag=2), topic("both", flag=3))
    assert other.list_topics(RequestCode.GET_UNIT_TOPIC_LIST) == {"unit", "both"}
    subscribed = other.list_topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
    assert subscribed == {"subscribed", "both"}
    mixed = other.list_topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    assert mixed == {"subscribed"}


def test_operators_change_what_other_brokers_have(other: Other) -> None:
    other.register(topic("theirs"), topic("more"))

    def permission() -> int:
        route = other.find_route("theirs")
        assert route is not None
        return int(route["queueDatas"][0]["perm"])

    wiped = other.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"})
    assert (wiped.ext_fields, permission()) == ({"wipeTopicCount": "2"}, 4)
    other.register(topic("theirs"), topic("more"))  # of the same version: nothing changes
    assert permission() == 4
    other.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"})
    assert permission() == 6
    queues = {"brokerName": "broker-b", "readQueueNums": 9, "writeQueueNums": 9, "perm": 6}
    body = orjson.dumps({"queueDatas": [queues]})
    made = other.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "single"}, body)
    assert made.code == ResponseCode.SUCCESS
    assert other.find_route("single") is not None
    for fields in ({"topic": "single"}, {"topic": "more", "clusterName": "cluster-a"}):
        assert other.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, dict(fields)).code == 0
    assert other.find_route("single") is None
    assert other.find_route("more") is None
    assert permission() == 6
