"""Tests of name server requests to a complete broker over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson
import pytest

from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.testing.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"brokerName": "broker-a", "brokerClusterName": "cluster-a"}
    with Broker(properties=settings) as started:
        topics = started.services.topics
        topic = TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=2)
        started.call(lambda: topics.update_topic(topic))
        yield started


def ask(
    broker: Broker, code: int, fields: dict[str, object] | None = None, body: bytes = b""
) -> RemotingCommand:
    async def main() -> RemotingCommand:
        async with await RemotingClient.open(broker.namesrv) as client:
            return await client.request(code, fields, body)

    return asyncio.run(main())


def test_a_route_names_the_broker_and_its_queues(broker: Broker) -> None:
    response = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert response.code == ResponseCode.SUCCESS
    assert orjson.loads(response.body_bytes) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": broker.remoting},
                "brokerName": "broker-a",
                "cluster": "cluster-a",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 2,
            }
        ],
    }


def test_an_unknown_topic_has_no_route(broker: Broker) -> None:
    response = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nobody"})
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nobody" in (response.remark or "")


def test_the_retry_topic_of_an_unknown_group_has_a_route_and_creates_nothing(
    broker: Broker,
) -> None:
    fields: dict[str, object] = {"topic": "%RETRY%new-group"}
    before = [broker.services.groups.encode(), broker.services.topics.encode()]
    response = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    assert [broker.services.groups.encode(), broker.services.topics.encode()] == before
    (queues,) = orjson.loads(response.body_bytes)["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (1, 6)
    bad = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%a/../b"})
    assert bad.code == ResponseCode.TOPIC_NOT_EXIST


def test_the_cluster_has_one_broker(broker: Broker) -> None:
    answer = orjson.loads(ask(broker, RequestCode.GET_BROKER_CLUSTER_INFO).body_bytes)
    assert answer["clusterAddrTable"] == {"cluster-a": ["broker-a"]}
    assert answer["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": broker.remoting}


def test_topics_are_listed_by_cluster(broker: Broker) -> None:
    def topics(code: int, **fields: object) -> set[str]:
        return set(orjson.loads(ask(broker, code, fields).body_bytes)["topicList"])

    every = topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert {"orders", "TBW102"} <= every
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="cluster-a") == every
    assert topics(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="other") == set()
    assert topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {"broker-a", "cluster-a"}


def test_a_broker_is_closed_for_writes_and_opened_again(broker: Broker) -> None:
    def permission() -> int:
        route = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        return int(orjson.loads(route.body_bytes)["queueDatas"][0]["perm"])

    wiped = ask(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert int(wiped.ext_fields["wipeTopicCount"]) > 0
    assert permission() == 4
    assert ask(broker, RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}).code == 0
    assert permission() == 6
    other = ask(broker, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "other"})
    assert other.ext_fields == {"wipeTopicCount": "0"}
    assert permission() == 6


def test_what_the_broker_permits_is_in_the_route(broker: Broker) -> None:
    settings = broker.services.settings
    settings.broker_permission = 4
    try:
        route = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert orjson.loads(route.body_bytes)["queueDatas"][0]["perm"] == 4
    finally:
        settings.broker_permission = 6


def test_small_texts_are_kept_by_namespace_and_key(broker: Broker) -> None:
    fields: dict[str, object] = {"namespace": "n", "key": "k"}
    assert ask(broker, RequestCode.GET_KV_CONFIG, fields).code == ResponseCode.QUERY_NOT_FOUND
    assert ask(broker, RequestCode.PUT_KV_CONFIG, {**fields, "value": "v"}).code == 0
    assert ask(broker, RequestCode.GET_KV_CONFIG, fields).ext_fields == {"value": "v"}
    listed = ask(broker, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert orjson.loads(listed.body_bytes) == {"table": {"k": "v"}}
    assert ask(broker, RequestCode.DELETE_KV_CONFIG, fields).code == 0
    assert ask(broker, RequestCode.GET_KV_CONFIG, fields).code == ResponseCode.QUERY_NOT_FOUND
    unknown = ask(broker, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "other"})
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND


def test_a_topic_is_registered_with_its_queues(broker: Broker) -> None:
    queues = {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    body = orjson.dumps({"queueDatas": [queues]})
    made = ask(broker, RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "made"}, body)
    assert made.code == 0
    route = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
    assert orjson.loads(route.body_bytes)["queueDatas"][0]["readQueueNums"] == 3
    many = orjson.dumps({"queueDatas": [queues | {"readQueueNums": 65_537}]})
    for wrong in (b"", b"[]", b'{"queueDatas":[{"brokerName":"other"}]}', many):
        refused = ask(broker, RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "other"}, wrong)
        assert refused.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("topic", "perm"), [("rmq_sys_foo", 6), ("made", 8), ("made", -1)])
def test_i30_no_topic_of_the_broker_is_registered(broker: Broker, topic: str, perm: int) -> None:
    """A client cannot register a topic with a reserved name or invalid permissions."""
    queues = {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 3, "perm": perm}
    body = orjson.dumps({"queueDatas": [queues]})
    refused = ask(broker, RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic}, body)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert perm != 6 or broker.services.topics.find_topic(topic) is None


def test_a_deleted_topic_has_no_route(broker: Broker) -> None:
    topics = broker.services.topics
    broker.call(lambda: topics.update_topic(TopicConfig(topic_name="gone")))
    broker.call(lambda: topics.delete_topic("gone"))
    assert ask(broker, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "gone"}).code == 0
    route = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "gone"})
    assert route.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_missing_field_is_named(broker: Broker) -> None:
    response = ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert "topic" in (response.remark or "")
