"""A broker for the gRPC clients of four languages, with topics and groups for their tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kit.clients.building import go_program, java_program, node_program, python_program
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientFailed, ClientProcess
from tests.kit.clients.served import Served, knows_broker, our_broker
from tests.kit.java import JavaTools
from tests.kit.waiting import wait_for
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager

LANGUAGES: Final = ("python", "java", "node", "go")
WITH_PUSH: Final = ("python", "java", "node")
"""Languages whose client has a push consumer. This version of the Go client has none."""
CLUSTER: Final = "DefaultCluster"
TOPICS: Final = (
    "simple", "large", "change", "push", "sql", "retry", "fifo", "poison", "delay", "transaction",
)  # fmt: skip
POLL: Final = {"grpcClientConsumerMaxLongPollingTimeoutMillis": "3000"}
"""Time limit of a long poll. It is short, because a push consumer waits for the end of its poll
when it closes."""
NO_SETTINGS: Final = 'getClientType()" because "settings" is null'
RETRIES: Final = 2
"""Number of redeliveries of a message in the groups `retry_…`."""


def start_client(language: str) -> ClientProcess:
    """Start the program of a language, or skip the test if it cannot be built."""
    if language == "python":
        return program_or_skip(python_program("messaging.py")).start()
    if language == "java":
        return program_or_skip(java_program("grpc")).start("Messaging")
    if language == "node":
        return program_or_skip(node_program("messaging.js")).start()
    return program_or_skip(go_program()).start()


def write_groups(folder: Path) -> None:
    """Write the groups `KIND_LANGUAGE` into the broker's folder. The kinds are simple, push, sql,
    retry, fifo, poison, other. All groups start at the first message."""
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    groups = SubscriptionGroupManager(config, load_broker_settings({}, "lab"))
    for language in LANGUAGES:
        for kind in ("simple", "push", "sql", "retry", "fifo", "poison", "other"):
            groups.update_group(
                SubscriptionGroupConfig(
                    group_name=f"{kind}_{language}",
                    consume_message_orderly=kind in {"fifo", "poison"},
                    retry_max_times=RETRIES if kind in {"retry", "poison"} else 16,
                    attributes={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
                )
            )
    (config / "subscriptionGroup.json").write_bytes(groups.encode())


_TYPES: Final = {"transaction": "TRANSACTION", "fifo": "FIFO", "poison": "FIFO"}


def write_topics(folder: Path) -> None:
    """Write the topics `KIND_topic_LANGUAGE`, because a proxy creates no topics. The proxy checks
    transactions only in topics of type TRANSACTION."""
    config = folder / "store" / "config"
    topics = TopicConfigManager(config, load_broker_settings({}, "lab"))
    for language in LANGUAGES:
        for kind in TOPICS:
            topics.update_topic(
                TopicConfig(
                    topic_name=f"{kind}_topic_{language}",
                    attributes={"message.type": _TYPES.get(kind, "MIXED")},
                )
            )
    (config / "topics.json").write_bytes(topics.encode())


@contextmanager
def lab_broker(folder: Path) -> Iterator[Served]:
    """Yield our broker, with the groups of `write_groups`."""
    write_groups(folder)
    with our_broker(folder, POLL) as served:
        yield served


@contextmanager
def behind_proxy(folder: Path) -> Iterator[Served]:
    """Yield a Java proxy in front of our broker and our name server."""
    java = _find_java()
    write_groups(folder)
    write_topics(folder)
    with (
        our_broker(folder, POLL) as own,
        java.proxy(folder, own.namesrv, CLUSTER) as grpc,
    ):
        yield Served(own.namesrv, grpc, is_proxy=True)


@contextmanager
def behind_proxy_and_java_namesrv(folder: Path) -> Iterator[Served]:
    """Yield a Java proxy in front of our broker and a Java name server."""
    java = _find_java()
    write_groups(folder)
    write_topics(folder)
    with (
        java.name_server(folder) as namesrv,
        our_broker(folder, {**POLL, "namesrvAddr": namesrv}),
    ):
        wait_for(lambda: asyncio.run(knows_broker(namesrv)))
        with java.proxy(folder, namesrv, CLUSTER) as grpc:
            yield Served(namesrv, grpc, is_proxy=True)


DOORS: Final = {
    "own": lab_broker,
    "proxy": behind_proxy,
    "proxy and Java's name server": behind_proxy_and_java_namesrv,
}
"""Servers to which the gRPC clients connect. Each function yields one."""


def _find_java() -> JavaTools:
    java = JavaTools.resolve()
    if isinstance(java, str):
        pytest.skip(f"no Java side: {java}")
    return java


class Lab:
    """A client program of one language, connected to the broker."""

    def __init__(self, language: str, client: ClientProcess, served: Served) -> None:
        self.language = language
        self.client = client
        self.served = served

    def topic(self, kind: str) -> str:
        """Return the name of the topic of this language's client."""
        return f"{kind}_topic_{self.language}"

    def call(self, verb: str, **fields: Any) -> Any:
        """Send a request to the client program."""
        return self.client.call(verb, grpc=self.served.grpc, **fields)

    def start_producer(self, *topics: str, transactional: bool = False) -> None:
        """Start the producer `p`."""
        self.call("start_producer", name="p", topics=topics, transactional=transactional)

    def send(self, topic: str, body: str, **fields: Any) -> Any:
        """Send a message with the producer `p`."""
        return self.call("send", name="p", topic=topic, body=body, **fields)

    def receive(self, name: str = "c") -> list[dict[str, Any]]:
        """Receive messages once with a consumer. Retry if a Java proxy fails with a
        NullPointerException, because it may not have the settings of a new client yet."""
        for _ in range(20):
            try:
                found: list[dict[str, Any]] = self.call(
                    "receive", name=name, count=32, invisible_s=30
                )
            except ClientFailed as error:
                if not (self.served.is_proxy and NO_SETTINGS in error.text):
                    raise
                time.sleep(0.5)
            else:
                return found
        raise AssertionError("the proxy never got the settings of the client")

    def receive_some(self, name: str = "c") -> list[dict[str, Any]]:
        """Receive with a consumer until messages arrive, without acknowledging them."""
        for _ in range(15):
            if found := self.receive(name):
                return found
        raise AssertionError("no message came")

    def receive_bodies(self, count: int) -> list[dict[str, Any]]:
        """Receive and acknowledge `count` messages with the consumer `c`. Return their bodies."""
        found: list[dict[str, Any]] = []
        for _ in range(20):
            for message in self.receive():
                self.call("ack", name="c", message_id=message["message_id"])
                found.append(message)
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} messages came")
