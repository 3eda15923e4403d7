"""Apache's Java client 5.5.0 pops light queues with its own calls. The slow run also tests the Java
broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.clients.program import ClientProcess, Program
from tests.kit.clients.served import BROKERS, find_broker

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}
QUEUE, OTHER = "%LMQ%popped", "%LMQ%other"
PARENT = "LightParent"


@pytest.fixture(scope="module", params=["ours", pytest.param("java", marks=pytest.mark.slow)])
def popping(
    request: pytest.FixtureRequest,
    java_remoting: Program,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Popping]:
    folder = tmp_path_factory.mktemp(request.param)
    with (
        BROKERS[request.param](folder, SETTINGS) as served,
        java_remoting.start("Pops") as client,
    ):
        client.call("start_pops", namesrv=served.namesrv)
        yield Popping(client, find_broker(served.namesrv))


class Popping:
    """A client that pops, and the address of its broker."""

    def __init__(self, client: ClientProcess, address: str) -> None:
        self._client = client
        self._address = address

    def send(self, body: str, *queues: str) -> None:
        fields: dict[str, Any] = {"topic": PARENT, "body": body, "queues": ",".join(queues)}
        assert self._client.call("send_light", **fields) == "SEND_OK"

    def call(self, verb: str, group: str, **fields: Any) -> Any:
        """Send a request about the light queue to the client program, such as `pop` or `ack`."""
        common = {"address": self._address, "topic": QUEUE, "group": group}
        return self._client.call(verb, **{**common, **fields})

    def take(self, group: str, count: int) -> list[list[Any]]:
        """Pop until there are `count` messages."""
        found: list[list[Any]] = []
        for _ in range(20):
            found += self.call("pop", group, wait_ms=3_000)
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} messages came: {found}")


def test_a_light_queue_is_popped_and_its_messages_come_again(popping: Popping) -> None:
    for number in range(4):
        popping.send(f"m{number}", *([QUEUE, OTHER] if number % 2 else [QUEUE]))
    assert popping.take("poppers", 4) == [[f"m{number}", number, 0] for number in range(4)]
    for body in ("m0", "m1", "m3"):
        assert popping.call("ack", "poppers", body=body) == "OK"
    assert popping.call("change", "poppers", body="m2", invisible_ms=1_000) == "OK"
    [(body, _, times)] = popping.take("poppers", 1)
    assert (body, times) == ("m2", 1)
    assert popping.call("ack", "poppers", body="m2") == "OK"
    assert popping.call("pop", "poppers") == []
    # Another group has its own progress.
    assert len(popping.take("others", 4)) == 4
