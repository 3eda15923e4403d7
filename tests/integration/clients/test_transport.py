"""Clients connect with each setting of the transport: TLS, client certificates, the binary
header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import self_signed
from tests.kit.clients.collected import FAST_CLIENT, bodies, wait_for_messages
from tests.kit.clients.grpc_lab import start_client
from tests.kit.clients.program import ClientFailed, Program
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.testing.broker import Broker

TLS = ("-Dtls.enable=true",)
BINARY_HEADER = ("-Drocketmq.serialize.type=ROCKETMQ",)


@pytest.fixture(scope="module")
def strict() -> Iterator[Broker]:
    """A broker that refuses connections without TLS."""
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


@pytest.fixture(scope="module")
def friend(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key of a trusted client."""
    return self_signed(tmp_path_factory.mktemp("friend"))


@pytest.fixture(scope="module")
def guarded(
    friend: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker that serves only clients with a trusted certificate."""
    certificate, key = self_signed(tmp_path_factory.mktemp("broker"))
    properties = {
        "tlsCertPath": str(certificate),
        "tlsKeyPath": str(key),
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(friend[0]),
    }
    with Broker(properties=properties) as broker:
        topic = TopicConfig(topic_name="Guarded")
        broker.call(lambda: broker.services.topics.update_topic(topic))
        yield broker


def test_a_java_client_with_a_certificate_is_served_and_checks_the_broker_s(
    guarded: Broker, friend: tuple[Path, Path], java_remoting: Program, tmp_path: Path
) -> None:
    certificate, key = friend
    trusted = Path(guarded.services.settings.tls_cert_path)

    def make_options(trusted: Path) -> tuple[str, ...]:
        return (
            *TLS,
            "-Dtls.test.mode.enable=false",
            f"-Dtls.client.certPath={certificate}",
            f"-Dtls.client.keyPath={key}",
            "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={trusted}",
        )

    asked = ["topicList", "-n", guarded.namesrv]
    with java_remoting.start("Admin", options=make_options(trusted)) as client:
        assert "Guarded" in client.call("mqadmin", args=asked)
    with java_remoting.start("Admin", options=make_options(certificate)) as client:
        assert "Exception" in client.call("mqadmin", args=asked)  # another's certificate


def test_a_java_client_without_a_certificate_is_not_served(
    guarded: Broker, java_remoting: Program
) -> None:
    with java_remoting.start("Admin", options=TLS) as client:
        assert "Exception" in client.call("mqadmin", args=["topicList", "-n", guarded.namesrv])


def test_a_go_client_is_served_with_a_certificate_alone(
    guarded: Broker, friend: tuple[Path, Path]
) -> None:
    certificate, key = map(str, friend)
    with start_client("go") as client:
        start: dict[str, Any] = {"name": "p", "topics": ["Guarded"], "grpc": guarded.grpc}
        with pytest.raises(ClientFailed):
            client.call("start_producer", **start)
    with start_client("go") as client:
        client.call("show_certificate", certificate=certificate, key=key)
        client.call("start_producer", **start)
        assert client.call("send", name="p", topic="Guarded", body="hello")["message_id"]
