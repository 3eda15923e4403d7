"""The broker forwards requests to live Java clients: requests of mqadmin, offset resets, and
replies to request messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.kit.clients.collected import FAST_CLIENT, bodies, wait_for_messages
from tests.kit.clients.program import ClientFailed, ClientProcess, Program
from tests.kit.clients.served import Served, our_broker

TOPIC, GROUP, PUSHED = "LiveTopic", "LiveGroup", "PushedGroup"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with our_broker(tmp_path_factory.mktemp("ours")) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(java_remoting: Program, served: Served) -> Iterator[ClientProcess]:
    """mqadmin, a producer, and a consumer that answers requests and has received one message."""
    classes = ("Admin", "Producers", "Collectors")
    with java_remoting.start(*classes, options=FAST_CLIENT) as found:
        found.call("start_producer", name="p", namesrv=served.namesrv, group="LiveProducers")
        for _ in range(5):  # on a busy machine its first questions take longer than it waits
            with suppress(ClientFailed):
                found.call("send", name="p", topic=TOPIC, body="first", keys="k")
                break
        found.call(
            "collect",
            name="c",
            namesrv=served.namesrv,
            group=GROUP,
            topics=[TOPIC],
            reply_with="re: ",
        )
        wait_for_messages(found, TOPIC, 1)
        yield found


def run(client: ClientProcess, served: Served, *arguments: str) -> str:
    printed: str = client.call("mqadmin", args=[*arguments, "-n", served.namesrv])
    return printed


def find_client_id(
    client: ClientProcess, served: Served, group: str = GROUP, version: str = "V5_5_0"
) -> str:
    lines = run(client, served, "consumerConnection", "-g", group).splitlines()
    [line] = [line for line in lines if version in line]
    return line.split()[0]


def test_how_a_consumer_is(client: ClientProcess, served: Served) -> None:
    client_id = find_client_id(client, served)
    printed = run(client, served, "consumerStatus", "-g", GROUP)
    assert client_id in printed
    assert "Rebalance OK" in printed
    one = run(client, served, "consumerStatus", "-g", GROUP, "-i", client_id)
    assert TOPIC in one
    assert "#Consumer MQ Detail#" in one


def test_a_consumer_consumes_a_message_directly(client: ClientProcess, served: Served) -> None:
    first = next(m for m in client.call("collected", topic=TOPIC) if m["body"] == "first")
    before = len(client.call("collected", topic=TOPIC))
    client_id = find_client_id(client, served)
    asked = ("-t", TOPIC, "-i", first["properties"]["UNIQ_KEY"], "-g", GROUP, "-d", client_id)
    printed = run(client, served, "queryMsgByUniqueKey", *asked)
    assert "CR_SUCCESS" in printed, printed
    assert bodies(client.call("collected", topic=TOPIC)[before:]) == ["first"]


def test_a_reply_reaches_who_asked(client: ClientProcess) -> None:
    request: dict[str, Any] = {"name": "p", "topic": TOPIC, "body": "are you there"}
    assert client.call("request", **request) == "re: are you there"


def test_a_live_group_goes_on_from_the_offsets_that_it_is_given(
    client: ClientProcess, served: Served
) -> None:
    before = len(client.call("collected", topic=TOPIC))
    printed = run(client, served, "resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert "labBroker" in printed
    deadline = time.monotonic() + 60
    while "first" not in bodies(client.call("collected", topic=TOPIC)[before:]):
        assert time.monotonic() < deadline, client.log()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def pushed(java_grpc: Program, served: Served, client: ClientProcess) -> Iterator[ClientProcess]:
    """A push consumer over gRPC that rejects one message."""
    with java_grpc.start("Messaging") as found:
        fields: dict[str, Any] = {
            "group": PUSHED,
            "topic": TOPIC,
            "poison": "bad",
            "grpc": served.grpc,
        }
        found.call("start_push", name="c", **fields)
        yield found


@pytest.mark.parametrize(("body", "verdict"), [("good", "CR_SUCCESS"), ("bad", "CR_LATER")])
def test_a_consumer_of_grpc_consumes_a_message_directly(
    client: ClientProcess, pushed: ClientProcess, served: Served, body: str, verdict: str
) -> None:
    sent = client.call("send", name="p", topic=TOPIC, body=body)["msg_id"]
    client_id = find_client_id(client, served, PUSHED, "V5_0_0")
    before = len(pushed.call("collected", topic=TOPIC))
    asked = ("-t", TOPIC, "-i", sent, "-g", PUSHED, "-d", client_id)
    printed = run(client, served, "queryMsgByUniqueKey", *asked)
    assert verdict in printed, printed
    assert "from gRPC client" in printed
    assert body in bodies(pushed.call("collected", topic=TOPIC)[before:])


def test_e107_how_a_consumer_of_grpc_is(
    client: ClientProcess, pushed: ClientProcess, served: Served
) -> None:
    client_id = find_client_id(client, served, PUSHED, "V5_0_0")
    assert "Rebalance OK" in run(client, served, "consumerStatus", "-g", PUSHED)
    one = run(client, served, "consumerStatus", "-g", PUSHED, "-i", client_id)
    assert TOPIC in one
    assert "CONSUME_PASSIVELY" in one
    stacks = run(client, served, "consumerStatus", "-g", PUSHED, "-i", client_id, "-s")
    assert "java.lang.Thread" in stacks, stacks
