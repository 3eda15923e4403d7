"""Apache's push consumer 5.5.0 runs with setClientRebalance(false). The broker then assigns queues
to the consumer, and decides whether it pulls or pops. The slow run also tests the Java broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.kit.clients.collected import FAST_CLIENT
from tests.kit.clients.program import ClientProcess, Program
from tests.kit.clients.served import Served

QUEUES = 4
LONGEST_S = 120
"""Time limit in seconds. It is long, because a client asks for its queues only every 20 s if
nothing has changed."""


def wait_for(is_done: Callable[[], bool]) -> None:
    """Wait until a condition is true. Fail after LONGEST_S."""
    end = time.monotonic() + LONGEST_S
    while not is_done():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Lab:
    """A process with mqadmin, a producer and consumers. Each test has a topic and a group."""

    client: ClientProcess
    namesrv: str
    address: str

    def admin(self, *arguments: str) -> str:
        printed: str = self.client.call("mqadmin", args=[*arguments, "-n", self.namesrv])
        assert "Exception" not in printed, printed
        return printed

    def make(self, name: str, mode: str | None, share_count: int = 0) -> None:
        """Create a topic and a group of this name, and set the mode of the group."""
        self.admin("updateTopic", "-b", self.address, "-t", name, "-r", "4", "-w", "4")
        self.admin("updateSubGroup", "-b", self.address, "-g", name)
        if mode is not None:
            self.set_mode(name, mode, share_count)

    def set_mode(self, name: str, mode: str, share_count: int = 0) -> None:
        more = ("-m", mode, "-q", str(share_count))
        printed = self.admin("setConsumeMode", "-b", self.address, "-t", name, "-g", name, *more)
        assert "success" in printed, printed

    def send(self, topic: str, *bodies: str) -> None:
        for number, body in enumerate(bodies):
            fields: dict[str, Any] = {"queue_id": number % QUEUES, "body": body}
            self.client.call("send_to_queue", name="p", topic=topic, **fields)

    def start(self, name: str, group: str, **more: Any) -> None:
        fields = {"group": group, "topics": [group], "broker_rebalance": True, **more}
        self.client.call("start_push", name=name, namesrv=self.namesrv, **fields)

    def stop(self, name: str) -> None:
        self.client.call("stop", name=name)

    def received(self, *names: str) -> list[dict[str, Any]]:
        return [line for name in names for line in self.client.call("received", name=name)]

    def assigned(self, name: str) -> set[int]:
        return set(self.client.call("assigned", name=name))

    def wait_for_bodies(self, expected: set[str], *names: str) -> None:
        wait_for(lambda: expected <= {line["body"] for line in self.received(*names)})

    def find_lag(self, group: str) -> int | None:
        """Return the number of the group's messages that it has not finished, according to mqadmin.
        None if mqadmin fails, for example because the group's retry topic does not exist yet."""
        printed = self.client.call(
            "mqadmin", args=["consumerProgress", "-g", group, "-n", self.namesrv]
        )
        if "Exception" in printed:
            return None
        rows = [line.split() for line in printed.splitlines()]
        return sum(int(row[3]) - int(row[4]) for row in rows if row[:2] == [group, "labBroker"])


@pytest.fixture(scope="module")
def lab(served: Served, java_remoting: Program) -> Iterator[Lab]:
    with java_remoting.start("Admin", "Producers", "Consumers", options=FAST_CLIENT) as client:
        bare = Lab(client, served.namesrv, "")
        rows = [line.split() for line in bare.admin("clusterList").splitlines()]
        [row] = [row for row in rows if "labBroker" in row]
        client.call("start_producer", name="p", namesrv=served.namesrv, group="pop-producers")
        yield Lab(client, served.namesrv, row[3])


def test_a_group_that_pops_gets_everything_and_a_failed_message_again(lab: Lab) -> None:
    lab.make("PopAll", "POP")
    sent = {"bad", *(f"m{number}" for number in range(19))}
    lab.send("PopAll", *sorted(sent))
    lab.start("pop", "PopAll", fail=1)
    wait_for(lambda: len(lab.received("pop")) >= 21)
    lines = lab.received("pop")
    assert Counter(line["body"] for line in lines) == Counter([*sent, "bad"])
    tries = [line for line in lines if line["body"] == "bad"]
    assert [line["reconsume_times"] for line in tries] == [0, 1]
    assert {line["topic"] for line in tries} == {"PopAll"}
    assert all("POP_CK" in line["properties"] for line in lines)
    assert lab.assigned("pop") == set()  # it has no queues of its own
    wait_for(lambda: lab.find_lag("PopAll") == 0)
    lab.send("PopAll", "late")
    lab.wait_for_bodies({"late"}, "pop")
    lab.stop("pop")


def test_the_highest_priority_is_popped_first(lab: Lab) -> None:
    lab.make("Priorities", "POP")
    queues = ("-r", "3", "-w", "3", "-a", "+message.type=PRIORITY")
    lab.admin("updateTopic", "-b", lab.address, "-t", "Priorities", *queues)
    chosen = []
    for number, priority in enumerate((0, 5, 1, 2)):
        fields: dict[str, Any] = {"topic": "Priorities", "body": f"{number}", "priority": priority}
        chosen.append(lab.client.call("send", name="p", **fields)["queue_id"])
    assert chosen == [0, 2, 1, 2]
    lab.start("priorities", "Priorities", threads=1)
    wait_for(lambda: len(lab.received("priorities")) == 4)
    assert [line["body"] for line in lab.received("priorities")] == ["1", "3", "2", "0"]
    lab.stop("priorities")


def test_a_group_without_a_mode_pulls_the_queues_that_the_broker_assigns(lab: Lab) -> None:
    lab.make("PullAll", None)
    sent = {f"m{number}" for number in range(20)}
    lab.send("PullAll", *sorted(sent))
    lab.start("one", "PullAll")
    lab.wait_for_bodies(sent, "one")
    wait_for(lambda: lab.assigned("one") == set(range(QUEUES)))
    lab.start("two", "PullAll")
    shares = [{0, 1}, {2, 3}]
    wait_for(lambda: [lab.assigned("one"), lab.assigned("two")] in (shares, shares[::-1]))
    lab.stop("two")
    wait_for(lambda: lab.assigned("one") == set(range(QUEUES)))
    assert {line["body"] for line in lab.received("one")} == sent
    lab.stop("one")


def test_members_that_pop_share_the_messages_and_one_takes_over(lab: Lab) -> None:
    lab.make("PopShare", "POP")
    lab.start("left", "PopShare")
    lab.start("right", "PopShare")

    def have_both() -> bool:
        lab.send("PopShare", *(f"{time.monotonic_ns()}" for _ in range(QUEUES)))
        return bool(lab.received("left")) and bool(lab.received("right"))

    wait_for(have_both)
    lab.stop("left")
    sent = {f"m{number}" for number in range(20)}
    lab.send("PopShare", *sorted(sent))
    lab.wait_for_bodies(sent, "right", "left")
    wait_for(lambda: lab.find_lag("PopShare") == 0)
    bodies = Counter(line["body"] for line in lab.received("left", "right"))
    assert sent <= bodies.keys()
    lab.stop("right")


def test_a_group_changes_from_pull_to_pop_and_back_without_a_loss(lab: Lab) -> None:
    lab.make("PopTurn", "PULL")
    lab.start("turn", "PopTurn")

    def has_queues(*, is_pulling: bool) -> bool:
        return bool(lab.assigned("turn")) is is_pulling

    for round_number, mode in enumerate(("PULL", "POP", "PULL")):
        lab.set_mode("PopTurn", mode)
        if round_number:
            wait_for(partial(has_queues, is_pulling=mode == "PULL"))
        sent = {f"{round_number}-{number}" for number in range(20)}
        lab.send("PopTurn", *sorted(sent))
        lab.wait_for_bodies(sent, "turn")
    lab.stop("turn")
