"""Apache's Java producers send messages of every kind over remoting. The tests compare the sent
messages with those that a consumer of the same client receives. All tests use our broker. Slow
tests also use the Java broker, to confirm that the expectations match Java."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.clients.building import java_program
from tests.kit.clients.collected import FAST_CLIENT, bodies, wait_for_messages
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientFailed, ClientProcess, Program
from tests.kit.clients.served import Served

TOPICS = (
    "Sync", "OneWay", "Async", "Batch", "Selected", "ToQueue", "Large", "Properties", "Delayed",
    "Timed", "Recalled", "Committed", "Asked",
)  # fmt: skip
OLD_NETTY = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
"""JVM options for the client 4.3.2, whose Netty is older than Java 9."""


@pytest.fixture(scope="module", params=["json", "rocketmq"])
def client(
    request: pytest.FixtureRequest, served: Served, java_remoting: Program
) -> Iterator[ClientProcess]:
    """One JVM with a producer, a transactional producer and a consumer. The names of its topics end
    with the client's header format (JSON or binary)."""
    kind = request.param
    options = (*FAST_CLIENT, f"-Drocketmq.serialize.type={kind.upper()}")
    with java_remoting.start("Producers", "Collectors", options=options) as process:
        namesrv = served.namesrv
        process.call("start_producer", name="p", namesrv=namesrv, group=f"producers-{kind}")
        group = f"transactions-{kind}"
        process.call("start_producer", name="t", namesrv=namesrv, group=group, transactions=True)
        topics = [f"{topic}-{kind}" for topic in TOPICS]
        group = f"collectors-{kind}"
        arguments: dict[str, Any] = {"namesrv": namesrv, "topics": topics, "reply_with": "re: "}
        process.call("collect", name="c", group=group, **arguments)
        process.kind = kind  # type: ignore[attr-defined]
        yield process
        process.call("stop_collecting", name="c")
        for name in ("p", "t"):
            process.call("stop_producer", name=name)


def _topic(client: ClientProcess, name: str) -> str:
    assert name in TOPICS
    return f"{name}-{client.kind}"  # type: ignore[attr-defined]


def _send(client: ClientProcess, verb: str, topic: str, producer: str = "p", **fields: Any) -> Any:
    return client.call(verb, name=producer, topic=_topic(client, topic), **fields)


def test_a_sync_send_makes_its_topic_and_is_consumed(client: ClientProcess) -> None:
    sent = [_send(client, "send", "Sync", body=f"m{i}", tag="a", keys=f"k{i}") for i in range(20)]
    assert {s["status"] for s in sent} == {"SEND_OK"}
    found = wait_for_messages(client, _topic(client, "Sync"), 20)
    assert sorted(bodies(found)) == sorted(f"m{i}" for i in range(20))
    # 8 queues of the broker's default, 4 of the client's: the smaller number
    assert {s["queue_id"] for s in sent} == {0, 1, 2, 3}
    places = {(s["queue_id"], s["queue_offset"], s["msg_id"]) for s in sent}
    assert places == {(m["queue_id"], m["queue_offset"], m["msg_id"]) for m in found}
    assert {(m["tag"], m["keys"][0]) for m in found} == {("a", "k")}
    assert all(len(s["offset_msg_id"]) == 32 for s in sent)


def test_one_way_sends_arrive(client: ClientProcess) -> None:
    for i in range(10):
        _send(client, "send_one_way", "OneWay", body=f"m{i}")
    found = wait_for_messages(client, _topic(client, "OneWay"), 10)
    assert sorted(bodies(found)) == sorted(f"m{i}" for i in range(10))


def test_async_sends_in_flight_at_once_are_each_answered(client: ClientProcess) -> None:
    sent = _send(client, "send_async", "Async", body="m", count=200)
    assert {s["status"] for s in sent} == {"SEND_OK"}
    found = wait_for_messages(client, _topic(client, "Async"), 200)
    by_id = {m["msg_id"]: m["body"] for m in found}
    assert [by_id[s["msg_id"]] for s in sent] == [f"m{i}" for i in range(200)]


def test_a_batch_is_stored_as_its_messages(client: ClientProcess) -> None:
    wanted = [f"m{i}" for i in range(32)]
    sent = _send(client, "send_batch", "Batch", bodies=wanted, tag="b", keys="k")
    found = wait_for_messages(client, _topic(client, "Batch"), 32)
    assert bodies(found) == wanted  # one queue, in order
    assert [m["msg_id"] for m in found] == sent["msg_id"].split(",")
    assert len(sent["offset_msg_id"].split(",")) == 32
    assert {m["queue_id"] for m in found} == {sent["queue_id"]}
    assert [m["queue_offset"] for m in found] == list(range(32))
    assert {(m["tag"], m["keys"]) for m in found} == {("b", "k")}


def test_a_selector_keeps_a_group_in_one_queue_in_order(client: ClientProcess) -> None:
    _send(client, "send", "Selected", body="first")  # makes the topic
    groups = ("g1", "g2", "g3", "g4", "g5")
    queues: dict[str, set[int]] = {group: set() for group in groups}
    for i in range(50):
        group = groups[i % 5]
        sent = _send(client, "send_selected", "Selected", body=f"{group} {i:02}", group=group)
        queues[group].add(sent["queue_id"])
    assert [len(ids) for ids in queues.values()] == [1] * 5
    found = bodies(wait_for_messages(client, _topic(client, "Selected"), 51))
    for group in groups:
        mine = [body for body in found if body.startswith(group)]
        assert len(mine) == 10
        assert mine == sorted(mine)


def test_a_message_goes_to_the_queue_that_is_named(client: ClientProcess) -> None:
    _send(client, "send", "ToQueue", body="first")
    sent = [_send(client, "send_to_queue", "ToQueue", body=f"m{i}", queue_id=3) for i in range(5)]
    assert {s["queue_id"] for s in sent} == {3}
    assert [s["queue_offset"] for s in sent] == list(
        range(sent[0]["queue_offset"], sent[0]["queue_offset"] + 5)
    )


def test_a_compressed_body_is_stored_compressed_and_consumed_whole(client: ClientProcess) -> None:
    for size in (100, 100_000, 3 << 20):
        _send(client, "send", "Large", body_size=size)
    found = wait_for_messages(client, _topic(client, "Large"), 3)
    seen = sorted((m["body_size"], m["store_size"]) for m in found)
    assert [size for size, _ in seen] == [100, 100_000, 3 << 20]
    assert [stored < size for size, stored in seen] == [False, True, True]


def test_properties_arrive_as_they_were_sent(client: ClientProcess) -> None:
    properties = {"a": "1", "unicode": "日本語 ü", "long": "x" * 5000}
    _send(client, "send", "Properties", body="m", tag="t", keys="k1 k2", properties=properties)
    (found,) = wait_for_messages(client, _topic(client, "Properties"), 1)
    assert {name: found["properties"][name] for name in properties} == properties
    assert (found["tag"], found["keys"]) == ("t", "k1 k2")
    assert found["born_timestamp"] <= found["store_timestamp"] + 1000


def test_a_message_over_the_limit_is_refused(client: ClientProcess) -> None:
    with pytest.raises(ClientFailed) as raised:
        _send(client, "send", "Large", body_size=(4 << 20) + 1)
    assert raised.value.code == 13  # by the client itself


def test_a_body_whose_properties_are_too_long_is_refused_by_the_broker(
    client: ClientProcess,
) -> None:
    with pytest.raises(ClientFailed) as raised:
        _send(client, "send", "Sync", body="m", properties={"long": "x" * 40_000})
    assert raised.value.code == 13  # MESSAGE_ILLEGAL
    assert raised.value.type == "MQBrokerException"


def test_a_delay_level_delivers_later(client: ClientProcess) -> None:
    before_ms = time.time() * 1000
    for level in (1, 2):
        sent = _send(client, "send", "Delayed", body=f"level {level}", delay_level=level)
        assert sent["status"] == "SEND_OK"
    found = wait_for_messages(client, _topic(client, "Delayed"), 2)
    after_ms = {m["body"]: m["store_timestamp"] - before_ms for m in found}
    assert after_ms["level 1"] >= 1000
    assert after_ms["level 2"] >= 5000


def test_a_timer_message_is_delivered_at_its_time(client: ClientProcess) -> None:
    before_ms = time.time() * 1000
    _send(client, "send", "Timed", body="in 3 s", deliver_after_ms=3000)
    (found,) = wait_for_messages(client, _topic(client, "Timed"), 1)
    # the wheel's ticks are whole: up to one early
    assert found["store_timestamp"] - before_ms >= 2000


def test_a_recalled_timer_message_is_not_delivered(client: ClientProcess) -> None:
    sent = _send(client, "send", "Recalled", body="recalled", deliver_after_ms=6000)
    _send(client, "recall", "Recalled", handle=sent["recall_handle"])
    _send(client, "send", "Recalled", body="kept", deliver_after_ms=7000)
    wait_for_messages(client, _topic(client, "Recalled"), 1)
    time.sleep(1)
    assert bodies(wait_for_messages(client, _topic(client, "Recalled"), 1)) == ["kept"]


def test_transactions_commit_roll_back_and_are_checked(
    client: ClientProcess, served: Served
) -> None:
    def send(key: str, answer: str, check: str = "UNKNOW") -> dict[str, Any]:
        fields = {"body": key, "keys": key, "answer": answer, "check_answer": check}
        sent: dict[str, Any] = _send(client, "send_in_transaction", "Committed", "t", **fields)
        return sent

    assert send("committed", "COMMIT_MESSAGE")["state"] == "COMMIT_MESSAGE"
    assert send("rolled back", "ROLLBACK_MESSAGE")["status"] == "SEND_OK"
    send("checked-commit", "UNKNOW", "COMMIT_MESSAGE")
    send("checked-rollback", "UNKNOW", "ROLLBACK_MESSAGE")
    found = wait_for_messages(client, _topic(client, "Committed"), 2, longest_s=90)
    deadline = time.monotonic() + 60
    while client.call("transaction_checks", key="checked-rollback") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert client.call("transaction_checks", key="checked-commit") >= 1
    time.sleep(0.5)
    found = wait_for_messages(client, _topic(client, "Committed"), 2)
    came = sorted(bodies(found))
    if not served.grpc:  # if time is short Java's broker asks about a just ended one
        came = sorted(set(came))
    assert came == ["checked-commit", "committed"]


def test_a_request_gets_its_reply(client: ClientProcess) -> None:
    _send(client, "send", "Asked", body="first")  # the replier's consumer has the topic
    wait_for_messages(client, _topic(client, "Asked"), 1)
    assert [_send(client, "request", "Asked", body=f"q{i}") for i in range(5)] == [
        f"re: q{i}" for i in range(5)
    ]


@pytest.mark.parametrize("version", ["remoting4", "remoting43"])
def test_an_older_client_sends_from_16_threads_and_consumes(version: str, served: Served) -> None:
    """The client 4.3.2 sends and consumes. By default it sends to the broker's second port (VIP
    channel)."""
    program = program_or_skip(java_program(version))
    with program.start("Producers4", options=(*FAST_CLIENT, *OLD_NETTY)) as client4:
        namesrv, topic = served.namesrv, f"Old{version}"
        fields: dict[str, Any] = {"namesrv": namesrv, "topic": topic, "threads": 16, "each": 50}
        assert client4.call("send_from_threads", **fields) == 800
        client4.call("consume", namesrv=namesrv, topic=topic)
        wanted = sorted(f"{t}-{i}" for t in range(16) for i in range(50))
        deadline = time.monotonic() + 60
        while len(client4.call("consumed")) < 800:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert sorted(client4.call("consumed")) == wanted
