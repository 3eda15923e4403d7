"""The published gRPC clients of four languages connect to our broker with their default settings,
each in its own process. Python and Node connect without TLS, Java and Go with TLS, all to the same
port. They also connect to a Java proxy 5.5.0 (cluster mode) in front of our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.kit.clients.collected import bodies, wait_for_messages
from tests.kit.clients.grpc_lab import (
    DOORS,
    LANGUAGES,
    RETRIES,
    WITH_PUSH,
    Lab,
    start_client,
)
from tests.kit.clients.served import Served, knows_topic
from tests.kit.waiting import wait_for


@pytest.fixture(
    scope="module",
    params=[
        "own",
        pytest.param("proxy", marks=pytest.mark.slow),
        pytest.param("proxy and Java's name server", marks=pytest.mark.slow),
    ],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with DOORS[request.param](tmp_path_factory.mktemp("lab")) as found:
        yield found


@pytest.fixture(params=LANGUAGES, scope="module")
def lab(request: pytest.FixtureRequest, served: Served) -> Iterator[Lab]:
    with start_client(request.param) as client:
        yield Lab(request.param, client, served)


has_push = pytest.mark.parametrize("lab", WITH_PUSH, indirect=True)
"""Test parameters: the languages with a push consumer. The Go client has none."""


def test_a_message_is_received_as_it_was_sent_and_once(lab: Lab) -> None:
    topic = lab.topic("simple")
    lab.start_producer(topic)
    lab.call("start_simple", name="c", group=f"simple_{lab.language}", topic=topic)
    sent = lab.send(
        topic, "hello ✓", tag="a", keys=["k1", "k2"], properties={"colour": "blue", "näme": "ü"}
    )
    (message,) = lab.receive_bodies(1)
    assert message["body"] == "hello ✓"
    assert message["message_id"] == sent["message_id"]
    assert message["tag"] == "a"
    assert sorted(message["keys"]) == ["k1", "k2"]
    assert message["properties"] == {"colour": "blue", "näme": "ü"}
    assert message["attempt"] == 1
    assert lab.receive() == []
    lab.call("stop", name="c")
    lab.call("stop", name="p")


def test_a_large_message_comes_whole(lab: Lab) -> None:
    topic = lab.topic("large")
    lab.start_producer(topic)
    lab.call("start_simple", name="c", group=f"other_{lab.language}", topic=topic)
    lab.send(topic, "0123456789abcdef", times=3 << 16)
    (message,) = lab.receive_bodies(1)
    assert message["body"] == "0123456789abcdef" * (3 << 16)
    lab.call("stop", name="c")
    lab.call("stop", name="p")


def test_a_message_that_is_given_back_comes_again(lab: Lab) -> None:
    topic = lab.topic("change")
    lab.start_producer(topic)
    lab.call("start_simple", name="c", group=f"other_{lab.language}", topic=topic)
    lab.send(topic, "again")
    (first,) = lab.receive_some()
    lab.call("change_invisible", name="c", message_id=first["message_id"], seconds=1)
    (second,) = lab.receive_some()
    assert (first["attempt"], second["attempt"]) == (1, 2)
    lab.call("ack", name="c", message_id=second["message_id"])
    lab.call("stop", name="c")
    lab.call("stop", name="p")


@has_push
def test_a_push_consumer_gets_all_by_tag(lab: Lab) -> None:
    topic = lab.topic("push")
    lab.start_producer(topic)
    lab.call("start_push", name="c", group=f"push_{lab.language}", topic=topic, expression="a || b")
    for number in range(30):
        lab.send(topic, f"body {number}", tag="abc"[number % 3])
    found = wait_for_messages(lab.client, topic, 20)
    assert sorted(bodies(found)) == sorted(f"body {n}" for n in range(30) if n % 3 < 2)
    lab.call("stop", name="c")
    lab.call("stop", name="p")


@pytest.mark.parametrize("lab", ["java", "python"], indirect=True)
def test_an_sql92_expression_chooses_by_properties(lab: Lab) -> None:
    topic = lab.topic("sql")
    lab.start_producer(topic)
    wanted = "(TAGS = 'a' AND number > 3) OR colour IN ('red')"
    fields = {"topic": topic, "expression": wanted, "sql": True}
    lab.call("start_push", name="c", group=f"sql_{lab.language}", **fields)
    for number in range(6):
        colour = "red" if number == 1 else "blue"
        properties = {"number": str(number), "colour": colour}
        lab.send(topic, f"body {number}", tag="ab"[number % 2], properties=properties)
    lab.send(topic, "last", tag="a", properties={"number": "9", "colour": "blue"})
    found = wait_for_messages(lab.client, topic, 3)
    assert sorted(bodies(found)) == ["body 1", "body 4", "last"]
    lab.call("stop", name="c")
    lab.call("stop", name="p")


@has_push
def test_a_message_that_fails_is_tried_again_and_then_a_dead_letter(lab: Lab) -> None:
    topic = lab.topic("retry")
    group = f"retry_{lab.language}"
    lab.start_producer(topic)
    lab.call("start_push", name="c", group=group, topic=topic, fail_times=99)
    lab.send(topic, "poison")
    found = wait_for_messages(lab.client, topic, RETRIES + 1)
    assert [message["attempt"] for message in sorted(found, key=lambda m: m["attempt"])] == [
        1 + number for number in range(RETRIES + 1)
    ]
    wait_for(lambda: asyncio.run(knows_topic(lab.served.namesrv, f"%DLQ%{group}")))
    lab.call("start_simple", name="d", group=f"other_{lab.language}", topic=f"%DLQ%{group}")
    dead = lab.receive_some("d")
    assert bodies(dead) == ["poison"]
    lab.call("stop", name="d")
    lab.call("stop", name="c")
    lab.call("stop", name="p")


@has_push
def test_message_groups_keep_their_order(lab: Lab) -> None:
    topic = lab.topic("fifo")
    lab.start_producer(topic)
    lab.call("start_push", name="c", group=f"fifo_{lab.language}", topic=topic)
    for number in range(30):
        lab.send(topic, f"{number:02d}", message_group=f"g{number % 3}")
    wait_for_messages(lab.client, topic, 30)
    found = lab.client.call("collected", topic=topic)
    for group in range(3):
        own = [message["body"] for message in found if int(message["body"]) % 3 == group]
        assert own == sorted(own)
        assert len(set(own)) == 10
    lab.call("stop", name="c")
    lab.call("stop", name="p")


@has_push
def test_what_a_message_group_cannot_consume_is_a_dead_letter_and_it_goes_on(lab: Lab) -> None:
    if lab.served.is_proxy and lab.language == "node":
        pytest.skip("Node 1.0.8 has no customized backoff, which a Java proxy asks for")
    topic = lab.topic("poison")
    group = f"poison_{lab.language}"
    lab.start_producer(topic)
    lab.call("start_push", name="c", group=group, topic=topic, poison="poison")
    lab.send(topic, "poison", message_group="g")
    lab.send(topic, "behind it", message_group="g")
    found = wait_for_messages(lab.client, topic, RETRIES + 2)
    assert bodies(lab.client.call("collected", topic=topic)) == [
        *["poison"] * (RETRIES + 1),
        "behind it",
    ]
    assert len(found) == RETRIES + 2
    wait_for(lambda: asyncio.run(knows_topic(lab.served.namesrv, f"%DLQ%{group}")))
    lab.call("start_simple", name="d", group=f"other_{lab.language}", topic=f"%DLQ%{group}")
    (dead,) = lab.receive_some("d")
    assert dead["body"] == "poison"
    lab.call("stop", name="d")
    lab.call("stop", name="c")
    lab.call("stop", name="p")


def test_a_delayed_message_comes_when_it_is_due_and_not_once_it_is_recalled(lab: Lab) -> None:
    topic = lab.topic("delay")
    lab.start_producer(topic)
    lab.call("start_simple", name="c", group=f"other_{lab.language}", topic=topic)
    lab.send(topic, "now")
    sent = lab.send(topic, "later", delay_ms=4_000)
    if lab.language != "go":  # that version cannot recall
        taken_back = lab.send(topic, "never", delay_ms=4_000)
        assert taken_back["recall_handle"]
        lab.call("recall", name="p", topic=topic, recall_handle=taken_back["recall_handle"])
    first, second = lab.receive_bodies(2)
    assert [first["body"], second["body"]] == ["now", "later"]
    assert second["at_ms"] >= sent["at_ms"] + 3_000
    assert bodies(lab.receive()) == []
    lab.call("stop", name="c")
    lab.call("stop", name="p")


def test_a_transaction_is_committed_rolled_back_or_asked_about(lab: Lab) -> None:
    topic = lab.topic("transaction")
    lab.start_producer(topic, transactional=True)
    lab.call("start_simple", name="c", group=f"other_{lab.language}", topic=topic)
    for end in ("commit", "rollback", "leave open"):
        lab.call("send_in_transaction", name="p", topic=topic, body=end, end=end)
    found = lab.receive_bodies(2)
    assert sorted(bodies(found)) == ["commit", "leave open"]
    assert set(lab.call("checked")) == {"leave open"}
    assert bodies(lab.receive()) == []
    lab.call("stop", name="c")
    lab.call("stop", name="p")
