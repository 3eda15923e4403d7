"""A broker registers with the published Java name server, and clients find the broker there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from tests.kit.java import JavaTools
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.java_json import quote_integer_keys
from tieredstore.testing.broker import Broker

TIMEOUT_S = 20
"""Time limit of the tests in seconds. It is shorter than the 30 s between two registrations."""


def ask(address: str, code: int, fields: dict[str, object] | None = None) -> RemotingCommand:
    async def main() -> RemotingCommand:
        async with await RemotingClient.open(address) as client:
            return await client.request(code, fields)

    return asyncio.run(main())


def find_route(address: str, topic: str) -> RemotingCommand:
    fields: dict[str, object] = {"topic": topic, "acceptStandardJsonOnly": True}
    return ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it has not happened in time"
        time.sleep(0.1)


def test_a_broker_is_found_through_a_java_name_server_while_it_runs(
    java: JavaTools, tmp_path: Path
) -> None:
    names = {"brokerName": "broker-a", "brokerClusterName": "cluster-a"}
    with java.name_server(tmp_path) as address:
        with Broker(properties={**names, "namesrvAddr": address}) as broker:
            wait_until(lambda: find_route(address, "TBW102").code == ResponseCode.SUCCESS)
            answer = ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
            clusters = orjson.loads(quote_integer_keys(answer.body_bytes))
            assert clusters["clusterAddrTable"] == {"cluster-a": ["broker-a"]}

            topic = TopicConfig(topic_name="orders", read_queue_nums=5, write_queue_nums=3)
            topics = broker.services.topics
            broker.call(lambda: topics.update_topic(topic))
            wait_until(lambda: find_route(address, "orders").code == ResponseCode.SUCCESS)
            from_java = orjson.loads(find_route(address, "orders").body_bytes)
            ours = orjson.loads(find_route(broker.namesrv, "orders").body_bytes)
            assert {name: from_java[name] for name in ours} == ours

            broker.services.settings.broker_permission = 4
            broker.call(lambda: topics.update_topic(TopicConfig(topic_name="more")))
            wait_until(lambda: find_route(address, "more").code == ResponseCode.SUCCESS)
            queues = orjson.loads(find_route(address, "orders").body_bytes)["queueDatas"]
            assert [found["perm"] for found in queues] == [4]
        assert find_route(address, "orders").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_java_broker_registers_with_ours(java: JavaTools, tmp_path: Path) -> None:
    def list_brokers() -> list[str]:
        route = orjson.loads(find_route(broker.namesrv, "TBW102").body_bytes)
        return [found["brokerName"] for found in route["brokerDatas"]]

    with Broker(properties={"brokerName": "broker-a"}) as broker:
        settings = (f"namesrvAddr={broker.namesrv}", "brokerName=java-broker")
        with java.hold(tmp_path / "store", *settings) as held:
            wait_until(lambda: list_brokers() == ["broker-a", "java-broker"])
            answer = ask(broker.namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
            clusters = orjson.loads(answer.body_bytes)
            assert list(clusters["brokerAddrTable"]) == ["broker-a", "java-broker"]
            held.stop()
            assert list_brokers() == ["broker-a"]
