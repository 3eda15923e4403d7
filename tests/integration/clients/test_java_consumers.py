"""Apache's consumers 5.5.0 and 4.9.8 connect over remoting. The tests cover push and lite pull
consumers in each mode."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.building import java_program
from tests.kit.clients.collected import FAST_CLIENT
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientFailed, ClientProcess, Program
from tests.kit.clients.served import Served, our_broker

QUEUES = 4
SETTINGS = {"enablePropertyFilter": "true", "defaultTopicQueueNums": str(QUEUES)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with our_broker(tmp_path_factory.mktemp("ours"), SETTINGS) as broker:
        yield broker


def start_producer(client: ClientProcess, served: Served) -> None:
    """Start a producer, and send a message. Repeats the first requests, because they can time out
    on a busy machine."""
    client.call("start_producer", name="p", namesrv=served.namesrv, group="producers")
    for _ in range(5):
        with suppress(ClientFailed):
            client.call("send", name="p", topic="Warm", body="warm")
            return


@pytest.fixture(scope="module")
def producer(java_remoting: Program, served: Served) -> Iterator[ClientProcess]:
    with java_remoting.start("Producers", options=FAST_CLIENT) as client:
        start_producer(client, served)
        yield client


@pytest.fixture(scope="module", params=["remoting", "remoting4"])
def consumers(request: pytest.FixtureRequest) -> Iterator[ClientProcess]:
    """A program with consumers, first of the Java client 5.5.0, then of the Java client 4.9.8."""
    program = program_or_skip(java_program(request.param))
    with program.start("Consumers", options=FAST_CLIENT) as client:
        yield client


class Lab:
    """A topic and a group for one test, and the consumers of the test."""

    def __init__(
        self, name: str, served: Served, producer: ClientProcess, consumers: ClientProcess
    ) -> None:
        self.topic, self.group = f"T-{name}", f"g-{name}"
        self._namesrv = served.namesrv
        self._producer = producer
        self.consumers = consumers
        self._started: list[str] = []

    def send(self, *bodies: str, queue_id: int | None = None, **more: Any) -> None:
        """Send messages. The first message creates the topic."""
        for body in bodies:
            if queue_id is None:
                self._producer.call("send", name="p", topic=self.topic, body=body, **more)
            else:
                self._producer.call(
                    "send_to_queue",
                    name="p",
                    topic=self.topic,
                    queue_id=queue_id,
                    body=body,
                    **more,
                )

    def start(self, name: str, **more: Any) -> str:
        """Start a push consumer. Return its name."""
        fields = {"group": self.group, "topics": [self.topic], **more}
        name = f"{name}-{self.group}"
        self.consumers.call("start_push", name=name, namesrv=self._namesrv, **fields)
        self._started.append(name)
        return name

    def stop(self, name: str) -> None:
        self._started.remove(name)
        self.consumers.call("stop", name=name)

    def start_lite(self, name: str, **more: Any) -> str:
        fields = {"group": self.group, "topic": self.topic, **more}
        self.consumers.call("start_lite", name=name, namesrv=self._namesrv, **fields)
        return name

    def poll(self, name: str, count: int) -> list[str]:
        """Wait until a lite pull consumer has the given number of messages. Return them."""
        found: list[str] = []
        end = time.monotonic() + 60
        while len(found) < count and time.monotonic() < end:
            found += [line["body"] for line in self.consumers.call("poll", name=name)]
        return found

    def received(self, name: str, count: int = 0, *, longest_s: float = 60) -> list[dict[str, Any]]:
        """Wait until a push consumer has the given number of messages. Return them."""
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            found[:] = self.consumers.call("received", name=name)
            return len(found) >= count

        self.wait_for(has_all, longest_s)
        return found

    def assigned(self, *names: str) -> list[set[int]]:
        return [set(self.consumers.call("assigned", name=name)) for name in names]

    def wait_until_shared(self, *names: str) -> list[set[int]]:
        """Wait until each queue belongs to exactly one consumer, and each consumer has a queue.
        Return the queues by consumer."""
        found: list[set[int]] = []

        def is_shared() -> bool:
            found[:] = self.assigned(*names)
            every = sorted(queue for queues in found for queue in queues)
            return every == list(range(QUEUES)) and all(found)

        self.wait_for(is_shared)
        return found

    def wait_for(self, is_done: Callable[[], bool], longest_s: float = 60) -> None:
        end = time.monotonic() + longest_s
        while not is_done():
            assert time.monotonic() < end, self.consumers.log()
            time.sleep(0.05)

    def close(self) -> None:
        for name in list(self._started):
            self.stop(name)


@pytest.fixture
def lab(
    request: pytest.FixtureRequest,
    served: Served,
    producer: ClientProcess,
    consumers: ClientProcess,
) -> Iterator[Lab]:
    name = "".join(c if c.isalnum() else "_" for c in request.node.name.removeprefix("test_"))
    found = Lab(name, served, producer, consumers)
    yield found
    found.close()


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return [line["body"] for line in lines]


def test_from_the_first_offset_and_then_as_messages_come(lab: Lab) -> None:
    early = [f"early{number}" for number in range(20)]
    lab.send(*early)
    name = lab.start("c")
    assert sorted(bodies(lab.received(name, 20))) == sorted(early)
    lab.send("late")
    assert bodies(lab.received(name, 21))[-1] == "late"
    lab.stop(name)
    again = lab.start("again")  # continues at the group's offset
    lab.send("more")
    assert bodies(lab.received(again, 1)) == ["more"]


@pytest.mark.parametrize("begin", ["LAST", "20991231235959"])
def test_a_new_group_gets_all_while_the_first_message_is_local(lab: Lab, begin: str) -> None:
    """While a queue's first message is in the local log, a new group begins with this message,
    whatever start the consumer has chosen. Java's broker does the same."""
    lab.send("before1", "before2")
    name = lab.start("c", **{"from": begin})
    assert sorted(bodies(lab.received(name, 2))) == ["before1", "before2"]
    lab.send("after")
    assert bodies(lab.received(name, 3))[-1] == "after"


def test_tags_are_filtered_by_the_broker(lab: Lab) -> None:
    for number, tag in enumerate(["A", "B", "C", "A"]):
        lab.send(f"{tag}{number}", tag=tag)
    name = lab.start("c", expression="A || C")
    assert sorted(bodies(lab.received(name, 3))) == ["A0", "A3", "C2"]


def test_sql92(lab: Lab) -> None:
    for number in range(6):
        lab.send(f"m{number}", tag="A", properties={"n": str(number), "kind": "x" * (number + 1)})
    sql = "(TAGS IS NOT NULL AND n BETWEEN 2 AND 3) OR kind = 'xxxxxx'"
    name = lab.start("c", expression=sql, sql=True)
    assert sorted(bodies(lab.received(name, 3))) == ["m2", "m3", "m5"]


def test_an_sql92_expression_that_is_none_is_refused_at_the_start(lab: Lab) -> None:
    lab.send("m")
    with pytest.raises(Exception, match="filter, character"):
        lab.start("c", expression="n BETWEEN", sql=True)


def test_broadcasting_gives_each_member_everything(lab: Lab) -> None:
    lab.send("first")
    names = [lab.start(name, model="BROADCASTING") for name in ("one", "two")]
    for name in names:
        lab.received(name, 1)
    lab.send("second", "third")
    for name in names:
        assert sorted(bodies(lab.received(name, 3))) == ["first", "second", "third"]


def test_two_members_share_the_queues_and_one_takes_over(lab: Lab) -> None:
    lab.send(*(f"m{number}" for number in range(8)))
    one = lab.start("one")
    lab.wait_until_shared(one)
    two = lab.start("two")
    shares = lab.wait_until_shared(one, two)
    assert sorted(map(len, shares)) == [2, 2]
    lab.send(*(f"n{number}" for number in range(8)))
    lab.wait_for(lambda: len(set(bodies(lab.received(one)) + bodies(lab.received(two)))) == 16)
    lab.stop(two)
    lab.wait_until_shared(one)
    lab.send(*(f"o{number}" for number in range(8)))
    lab.wait_for(lambda: {f"o{number}" for number in range(8)} <= set(bodies(lab.received(one))))


def test_orderly_keeps_the_order_of_each_queue_over_a_take_over(lab: Lab) -> None:
    lab.send("-1")  # which makes the topic
    for number in range(10):
        for queue_id in range(QUEUES):
            lab.send(f"{number}", queue_id=queue_id)
    one = lab.start("one", orderly=True)
    assert all(found == sorted(found, key=int) for found in by_queue(lab.received(one, 41)))
    two = lab.start("two", orderly=True)
    lab.wait_until_shared(one, two)
    for number in range(10, 20):
        for queue_id in range(QUEUES):
            lab.send(f"{number}", queue_id=queue_id)
    lab.wait_for(lambda: len(lab.received(one)) + len(lab.received(two)) >= 81)
    for name in (one, two):
        for found in by_queue(lab.received(name)):
            assert found == sorted(found, key=int)


def by_queue(lines: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [line["body"] for line in lines if line["queue_id"] == queue_id]
        for queue_id in range(QUEUES)
    ]


def test_orderly_a_message_that_always_suspends_holds_its_queue_to_the_dead_letters(
    lab: Lab,
) -> None:
    lab.send("makes the topic")
    lab.send("before", "bad", "after", queue_id=1)
    lab.send("beside", queue_id=2)
    name = lab.start("c", orderly=True, fail=-1, max_reconsume_times=3)
    lab.wait_for(lambda: "after" in bodies(lab.received(name)))
    held = [line["body"] for line in lab.received(name) if line["queue_id"] == 1]
    held = held[held.index("before") :]  # behind what made the topic
    assert held == ["before", *["bad"] * (len(held) - 2), "after"]
    assert len(held) > 3
    assert "beside" in bodies(lab.received(name))
    dead = lab.start("dead", group=f"dead-{lab.group}", topics=[f"%DLQ%{lab.group}"])
    letters = lab.received(dead, 1)
    assert bodies(letters) == ["bad"]


def test_retries_and_then_the_dead_letters(lab: Lab) -> None:
    lab.send("bad", "good")
    name = lab.start("c", fail=-1, max_reconsume_times=2)
    lab.wait_for(lambda: Counter(bodies(lab.received(name)))["bad"] == 3)
    tries = [line for line in lab.received(name) if line["body"] == "bad"]
    assert [line["reconsume_times"] for line in tries] == [0, 1, 2]
    assert {line["topic"] for line in tries} == {lab.topic}  # the client puts it back
    dead = lab.start("dead", group=f"dead-{lab.group}", topics=[f"%DLQ%{lab.group}"])
    letters = lab.received(dead, 1)
    assert bodies(letters) == ["bad"]
    assert letters[0]["properties"]["DLQ_ORIGIN_TOPIC"] == lab.topic
    assert Counter(bodies(lab.received(name))) == {"bad": 3, "good": 1}


def test_a_message_that_fails_once_is_delivered_again(lab: Lab) -> None:
    lab.send("bad")
    name = lab.start("c", fail=1)
    lines = lab.received(name, 2)
    assert [line["reconsume_times"] for line in lines] == [0, 1]


@pytest.mark.parametrize("strategy", ["average", "circular", "consistent hash", "nearby room"])
def test_strategies_that_share_all_queues(lab: Lab, strategy: str) -> None:
    lab.send("m")
    one = lab.start("one", strategy=strategy)
    assert lab.wait_until_shared(one) == [set(range(QUEUES))]
    two = lab.start("two", strategy=strategy)

    halves = {
        "average": [{0, 1}, {2, 3}],
        "nearby room": [{0, 1}, {2, 3}],
        "circular": [{0, 2}, {1, 3}],
    }.get(strategy)

    def is_shared() -> bool:  # the clients take and give up queues one after the other
        found = lab.assigned(one, two)
        if halves is not None:
            return found in (halves, halves[::-1])
        return sorted(queue for queues in found for queue in queues) == list(range(QUEUES))

    lab.wait_for(is_shared)


def test_a_strategy_by_configuration(lab: Lab) -> None:
    lab.send("m")
    lab.send("mine", queue_id=3)
    name = lab.start("c", strategy="configuration", queue_ids=[1, 3], broker="labBroker")
    lab.wait_for(lambda: lab.assigned(name) == [{1, 3}])
    lab.wait_for(lambda: "mine" in bodies(lab.received(name)))


def test_a_strategy_by_machine_room_leaves_out_brokers_of_others(lab: Lab) -> None:
    """Java's assignment by machine room assigns no queue of this broker to a client. The assignment
    expects broker names of the form `room@name`, and this broker's name has no room."""
    lab.send("m")
    name = lab.start("c", strategy="machine room", room="room")
    beside = lab.start("beside", group=f"beside-{lab.group}")
    assert bodies(lab.received(beside, 1)) == ["m"]
    assert lab.assigned(name) == [set()]


def test_a_strategy_by_machine_room_shares_the_queues_of_its_room(
    tmp_path: Path, java_remoting: Program, consumers: ClientProcess
) -> None:
    with (
        our_broker(tmp_path, SETTINGS | {"brokerName": "room@labBroker"}) as served,
        java_remoting.start("Producers", options=FAST_CLIENT) as producer,
    ):
        start_producer(producer, served)
        lab = Lab(f"room{time.monotonic_ns()}", served, producer, consumers)
        lab.send("m")
        names = [lab.start(name, strategy="machine room", room="room") for name in ("one", "two")]
        assert sorted(map(len, lab.wait_until_shared(*names))) == [2, 2]
        lab.close()


def test_lite_pull_by_subscription_commits_and_goes_on(lab: Lab) -> None:
    sent = [f"m{number}" for number in range(10)]
    lab.send(*sent)
    lab.start_lite("lite")
    assert sorted(lab.poll("lite", 10)) == sorted(sent)
    lab.consumers.call("commit", name="lite")
    lab.consumers.call("stop_lite", name="lite")
    lab.send("next")
    lab.start_lite("lite")
    assert lab.poll("lite", 1) == ["next"]
    lab.consumers.call("stop_lite", name="lite")


def test_lite_pull_of_assigned_queues_seeks(lab: Lab) -> None:
    lab.send("early1", "early2")
    time.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.05)
    lab.send("late")
    lab.start_lite("lite", assign=True)
    assert sorted(lab.poll("lite", 3)) == ["early1", "early2", "late"]
    lab.consumers.call("seek_to_begin", name="lite", topic=lab.topic)
    assert sorted(lab.poll("lite", 3)) == ["early1", "early2", "late"]
    lab.consumers.call("seek_to_time", name="lite", topic=lab.topic, time_ms=middle_ms)
    assert lab.poll("lite", 1) == ["late"]
    lab.consumers.call("stop_lite", name="lite")
