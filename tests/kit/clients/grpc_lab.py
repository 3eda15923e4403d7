"""A broker for the gRPC clients of four languages, with the groups that their tests consume in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.kit.clients.building import go_program, java_program, node_program, python_program
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientProcess
from tests.kit.clients.served import Served, our_broker
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager

LANGUAGES: Final = ("python", "java", "node", "go")
WITH_PUSH: Final = ("python", "java", "node")
"""The Go client of this version has a consumer that asks, and none that is called."""
POLL: Final = {"grpcClientConsumerMaxLongPollingTimeoutMillis": "3000"}
"""Consumers that are called wait for their poll when they close."""
RETRIES: Final = 2
"""Deliveries after the first in the groups `retry_…`."""


def start_client(language: str) -> ClientProcess:
    """Start the program of a language; skips with the reason where it cannot be built."""
    if language == "python":
        return program_or_skip(python_program("messaging.py")).start()
    if language == "java":
        return program_or_skip(java_program("grpc")).start("Messaging")
    if language == "node":
        return program_or_skip(node_program("messaging.js")).start()
    return program_or_skip(go_program()).start()


def write_groups(folder: Path) -> None:
    """Make the groups `KIND_LANGUAGE` for a broker in a folder: simple, push, sql, retry, fifo,
    poison, other.
    All begin with the first message."""
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


@contextmanager
def lab_broker(folder: Path) -> Iterator[Served]:
    """Our broker with the groups of `write_groups`."""
    write_groups(folder)
    with our_broker(folder, POLL) as served:
        yield served


class Lab:
    """A client program that is connected to the broker."""

    def __init__(self, language: str, client: ClientProcess, served: Served) -> None:
        self.language = language
        self.client = client
        self.served = served

    def topic(self, kind: str) -> str:
        """Name a topic of this language's own."""
        return f"{kind}_topic_{self.language}"

    def call(self, verb: str, **fields: Any) -> Any:
        """Ask the client."""
        return self.client.call(verb, grpc=self.served.grpc, **fields)

    def start_producer(self, *topics: str, transactional: bool = False) -> None:
        """Start the producer `p`."""
        self.call("start_producer", name="p", topics=topics, transactional=transactional)

    def send(self, topic: str, body: str, **fields: Any) -> Any:
        """Send with the producer `p`."""
        return self.call("send", name="p", topic=topic, body=body, **fields)

    def receive_bodies(self, count: int) -> list[dict[str, Any]]:
        """Receive with the consumer `c`, and acknowledge, until there are `count` messages."""
        found: list[dict[str, Any]] = []
        for _ in range(20):
            for message in self.call("receive", name="c", count=32, invisible_s=30):
                self.call("ack", name="c", message_id=message["message_id"])
                found.append(message)
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} messages came")
