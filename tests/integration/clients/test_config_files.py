"""A Java broker and our broker exchange the files of `config/` in both directions."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.clients.program import ClientProcess, Program
from tests.kit.clients.served import Served, our_broker
from tests.kit.java import JavaTools
from tests.kit.remoting import RemotingClient
from tests.kit.waiting import wait_for
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand

FILES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "messageRequestMode.json",
)


class _Admin:
    """Runs mqadmin commands on one broker."""

    def __init__(self, client: ClientProcess, served: Served) -> None:
        self._client = client
        self._namesrv = served.namesrv
        wait_for(lambda: bool(self._find_addresses()))
        [self.address] = self._find_addresses()

    def _find_addresses(self) -> list[str]:
        return [row[3] for row in self.rows("clusterList") if "labBroker" in row]

    def rows(self, *arguments: str) -> list[list[str]]:
        """Run one command. Return the words of each line."""
        printed = self._client.call("mqadmin", args=[*arguments, "-n", self._namesrv])
        assert "Exception" not in printed, printed
        return [line.split() for line in printed.splitlines() if line.strip()]

    def make_topic(self, name: str, queues: str) -> None:
        """Create a topic, and a group of the same name that pops its messages."""
        at = ("-b", self.address)
        self.rows("updateTopic", *at, "-t", name, "-r", queues, "-w", queues)
        self.rows("updateSubGroup", *at, "-g", name, "-r", "3")
        self.rows("setConsumeMode", *at, "-t", name, "-g", name, "-m", "POP", "-q", "2")

    def consume(self, name: str) -> None:
        """Make the group consume one message of the topic's first queue."""
        send = ("sendMessage", "-t", name, "-p", "x", "-b", "labBroker", "-i", "0")
        wait_for(lambda: self.rows(*send)[-1][2:3] == ["SEND_OK"])
        self._client.call("collect", name=name, namesrv=self._namesrv, group=name, topics=[name])
        wait_for(lambda: self.offset_of(name) == "1")
        self._client.call("stop_collecting", name=name)

    def queues_of(self, name: str) -> str:
        """Return the number of queues of a topic."""
        rows = self.rows("topicRoute", "-t", name, "-l")
        return next(row[3] for row in rows if "labBroker" in row)

    def find_modes(self) -> dict[str, tuple[str, int]]:
        """Return the mode of each topic's group (pull or pop) and its `popShareQueueNum`, by topic.
        The group has the name of the topic."""

        async def ask() -> RemotingCommand:
            async with await RemotingClient.open(self.address) as client:
                return await client.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)

        modes = json.loads(asyncio.run(ask()).body_bytes)["messageRequestModeMap"]
        return {
            topic: (groups[topic]["mode"], groups[topic]["popShareQueueNum"])
            for topic, groups in modes.items()
        }

    def offset_of(self, name: str) -> str | None:
        """Return the group's offset in its topic's first queue."""
        arguments = ["consumerProgress", "-g", name, "-n", self._namesrv]
        printed = self._client.call("mqadmin", args=arguments)  # fails without any offset
        found = re.search(rf"^{name} +labBroker +0 +\d+ +(\d+) ", printed, re.MULTILINE)
        return None if found is None else found[1]


@contextmanager
def _java_broker(folder: Path) -> Iterator[Served]:
    """Start a Java broker without light message queues. With them, it would keep offsets in another
    file."""
    java = JavaTools.resolve()
    if isinstance(java, str):
        pytest.skip(f"no Java side: {java}")
    with java.hold(folder / "store", "brokerName=labBroker", "enableLmq=false") as held:
        yield Served(held.namesrv)
        held.stop()


def _take(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(source / name, target / name)


@pytest.mark.slow  # three starts of brokers
def test_java_s_files_are_read_and_ours_by_java(tmp_path: Path, java_remoting: Program) -> None:
    java, ours = tmp_path / "java", tmp_path / "ours"
    java.mkdir()
    with java_remoting.start("Admin", "Collectors") as client:
        with _java_broker(java) as served:
            admin = _Admin(client, served)
            admin.make_topic("JavaTopic", "3")
            admin.consume("JavaTopic")
        _take(java / "store" / "config", ours / "store" / "config")
        with our_broker(ours) as served:
            admin = _Admin(client, served)
            assert admin.queues_of("JavaTopic") == "3"
            assert admin.offset_of("JavaTopic") == "1"
            assert admin.find_modes() == {"JavaTopic": ("POP", 2)}
            admin.make_topic("OurTopic", "5")
            admin.consume("OurTopic")
        table = json.loads((ours / "store" / "config" / FILES[1]).read_bytes())
        groups = table["subscriptionGroupTable"]
        assert groups["JavaTopic"]["retryMaxTimes"] == groups["OurTopic"]["retryMaxTimes"] == 3
        _take(ours / "store" / "config", java / "store" / "config")
        with _java_broker(java) as served:
            admin = _Admin(client, served)
            assert admin.find_modes() == dict.fromkeys(("JavaTopic", "OurTopic"), ("POP", 2))
            assert (admin.queues_of("JavaTopic"), admin.queues_of("OurTopic")) == ("3", "5")
            wait_for(lambda: admin.offset_of("OurTopic") == "1")
