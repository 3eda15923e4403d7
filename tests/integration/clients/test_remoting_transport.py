"""Apache's Java client 5.5.0 with what its transport can be told: TLS, the binary header."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.clients.collected import FAST_CLIENT, bodies, wait_for_messages
from tests.kit.clients.program import Program
from tieredstore.testing.broker import Broker

TLS = ("-Dtls.enable=true",)
BINARY_HEADER = ("-Drocketmq.serialize.type=ROCKETMQ",)


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    """A broker that serves nobody without TLS."""
    with Broker(properties={"tls.server.mode": "enforcing"}) as broker:
        yield broker


@pytest.mark.parametrize("options", [TLS, TLS + BINARY_HEADER], ids=["tls", "tls-binary"])
def test_a_java_client_sends_and_consumes_with_tls(
    strict: Broker, java_remoting: Program, options: tuple[str, ...]
) -> None:
    topic = f"Tls{len(options)}"
    with java_remoting.start("Producers", "Collectors", options=(*FAST_CLIENT, *options)) as client:
        client.call("start_producer", name="p", namesrv=strict.namesrv, group="TlsProducers")
        for number in range(10):
            client.call("send", name="p", topic=topic, body=f"body {number}")
        client.call(
            "collect", name="c", namesrv=strict.namesrv, group=f"{topic}Group", topics=[topic]
        )
        messages = wait_for_messages(client, topic, 10)
    assert sorted(bodies(messages)) == [f"body {number}" for number in range(10)]


def test_a_java_client_without_tls_is_not_served_where_it_is_enforced(
    strict: Broker, java_remoting: Program
) -> None:
    with java_remoting.start("Admin") as client:
        printed = client.call("mqadmin", args=["clusterList", "-n", strict.namesrv])
        assert "Exception" in printed
