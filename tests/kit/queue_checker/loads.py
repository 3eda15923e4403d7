"""Real clients that send and consume until a test stops them, even during failures of the
broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.program import ClientProcess
from tests.kit.queue_checker.checker import Delivered, Place, Pop, Sent

GROUPS = 8
PAUSE_MS = 10


class Load(Protocol):
    """Clients of one topic: producers of message groups, and optionally consumers. `is_orderly`:
    whether the consumer receives the groups in order. `pops`: deliveries to popping consumers."""

    @property
    def topic(self) -> str: ...
    @property
    def is_orderly(self) -> bool: ...
    @property
    def pops(self) -> Sequence[Pop]: ...

    def start(self, broker: BrokerProcess) -> None:
        """Start the producers, and the consumer if there is one."""

    def stop_sending(self) -> list[Sent]:
        """Stop the producers and return all sends, in order within each group."""

    def consumed(self) -> list[Delivered] | None:
        """Return the received messages in order of arrival, or None without a consumer."""

    def stop_consuming(self) -> None:
        """Stop the consumer."""


@dataclass(frozen=True, slots=True)
class RemotingLoad:
    """Load of Java clients over remoting. A message group determines its queue, and each queue is
    consumed in order. `client` runs the Java classes `Loads` and `Collectors`."""

    client: ClientProcess
    topic: str = "Checked"
    is_orderly: bool = True
    pops: Sequence[Pop] = ()

    def start(self, broker: BrokerProcess) -> None:
        load: dict[str, Any] = {"topic": self.topic, "groups": GROUPS, "pause_ms": PAUSE_MS}
        self.client.call("start_load", namesrv=broker.namesrv, **load)
        consumer: dict[str, Any] = {"group": "live", "topics": [self.topic], "orderly": True}
        self.client.call("collect", name="live", namesrv=broker.namesrv, **consumer)

    def stop_sending(self) -> list[Sent]:
        return [_sent(row) for row in self.client.call("stop_load")]

    def consumed(self) -> list[Delivered]:
        rows = self.client.call("places", topic=self.topic)
        return [Delivered(body, Place(queue, offset)) for body, queue, offset in rows]

    def stop_consuming(self) -> None:
        self.client.call("stop_collecting", name="live")


@dataclass(frozen=True, slots=True)
class GrpcLoad:
    """Load of Java clients over gRPC: message groups and a push consumer. `client` runs
    `GroupLoads`. The topic must exist, and the consumer group must be orderly."""

    client: ClientProcess
    topic: str
    group: str
    is_orderly: bool = True
    pops: Sequence[Pop] = ()

    def start(self, broker: BrokerProcess) -> None:
        load: dict[str, Any] = {"topic": self.topic, "groups": GROUPS, "pause_ms": PAUSE_MS}
        self.client.call("start_load", grpc=broker.grpc, **load)
        self.client.call("start_consumer", grpc=broker.grpc, topic=self.topic, group=self.group)

    def stop_sending(self) -> list[Sent]:
        return [_sent(row) for row in self.client.call("stop_load")]

    def consumed(self) -> list[Delivered]:
        return [Delivered(body) for body in self.client.call("consumed")]

    def stop_consuming(self) -> None:
        self.client.call("stop_consumer")


def _sent(row: list[Any]) -> Sent:
    group, number, *answer = row
    is_acknowledged = len(answer) != 1  # one: what went wrong
    return Sent(group, number, is_acknowledged, Place(*answer) if len(answer) == 2 else None)
