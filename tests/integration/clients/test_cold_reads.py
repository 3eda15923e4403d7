"""Clients read messages that only the tier has, with the same results as for messages on the
broker's disk."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.clients.collected import FAST_CLIENT
from tests.kit.clients.program import ClientProcess, Program
from tests.kit.queue_checker.checker import Place
from tests.kit.waiting import wait_for
from tieredstore.testing.broker import Broker

QUEUES = range(4)
"""Queue ids of a topic that was created by a send."""
SMALL = {
    "mappedFileSizeCommitLog": str(1 << 16),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "deleteCommitLogFilesInterval": "0",
    "readAheadCacheSizeBytes": str(1 << 20),
}
"""Configuration with files of about 250 messages. Cleaning deletes such files one after the
other."""
MUCH = 500
"""Number of messages of a queue. They fill more than the queue's first file."""
LEVELS = ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE")


@pytest.fixture(scope="module")
def client(java_remoting: Program) -> Iterator[ClientProcess]:
    parts = ("Admin", "Collectors", "Loads", "Producers", "Readers")
    with java_remoting.start(*parts, options=FAST_CLIENT) as process:
        yield process


class ColdBroker:
    """Broker of one topic, on a nearly full disk. Cleaning deletes all files that are no longer
    needed."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.namesrv = broker.namesrv
        self._local = cast(Any, broker.services.store).next_store
        self._local.cleaning._disk._measure = lambda _: 0.86

    def count(self, queue_id: int) -> int:
        """Return the end offset of a queue, as the broker reports it."""
        return cast(int, self._local.get_max_offset_in_queue(self._topic, queue_id))

    def local_minimum(self, queue_id: int) -> int:
        """Return the first offset of a queue in the local store."""
        return cast(int, self._local.get_min_offset_in_queue(self._topic, queue_id))

    def clean(self) -> None:
        """Delete all files that are no longer needed."""
        self._local.flush()
        while self._local.cleaning.run_once().log_files:
            pass

    def move_border(self) -> None:
        """Upload everything, and delete the uploaded local files."""
        self._broker.flush_tier()
        self.clean()

    @contextmanager
    def moving_border(self) -> Iterator[None]:
        """Move messages to the tier repeatedly while the block runs."""
        over = threading.Event()
        failures: list[BaseException] = []

        def move() -> None:
            try:
                while not over.wait(0.05):
                    self.move_border()
            except BaseException as error:
                failures.append(error)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            yield
        finally:
            over.set()
            mover.join()
        assert failures == []


@contextmanager
def _cold_broker(folder: Path, topic: str, level: str) -> Iterator[ColdBroker]:
    with Broker(folder, {**SMALL, "tieredStorageLevel": level}) as broker:
        yield ColdBroker(broker, topic)


@pytest.mark.parametrize("level", LEVELS)
def test_a_queue_is_read_from_its_head_while_the_border_moves(
    client: ClientProcess, tmp_path: Path, level: str
) -> None:
    topic = f"Cold-{level}"
    with _cold_broker(tmp_path, topic, level) as broker:
        client.call("start_reader", namesrv=broker.namesrv, group="readers")
        _load(client, broker, topic)
        broker.move_border()
        with broker.moving_border():
            read = {queue_id: _read(client, topic, queue_id) for queue_id in QUEUES}
        sent = client.call("stop_load")
        assert [one for one in sent if len(one) != 4] == []  # each send succeeded
        wanted = {Place(queue, offset): f"{g}-{n}" for g, n, queue, offset in sent}
        broker.move_border()
        cold = [queue_id for queue_id in QUEUES if broker.local_minimum(queue_id) > MUCH]
        assert cold, "no queue went cold"
        for queue_id, rows in read.items():
            assert rows == [
                [offset, wanted[Place(queue_id, offset)]] for offset in range(len(rows))
            ]
        assert all(len(read[queue_id]) > MUCH for queue_id in cold)
        _consume_all(client, broker.namesrv, topic, wanted)
        _look_up(client, topic, cold[0], wanted)


def _load(client: ClientProcess, broker: ColdBroker, topic: str) -> None:
    """Send at a limited rate, so that a slow machine can read all messages."""
    load: dict[str, Any] = {
        "topic": topic,
        "groups": 4,
        "pause_ms": 1,
        "most": 3000,
        "timeout_ms": 60_000,
    }
    client.call("start_load", namesrv=broker.namesrv, **load)

    def is_enough() -> bool:
        counts = [count for count in map(broker.count, QUEUES) if count]
        return sum(counts) > 1500 and min(counts) > MUCH

    wait_for(is_enough)


def _read(client: ClientProcess, topic: str, queue_id: int) -> list[list[Any]]:
    """Read from offset 0 to the current end in small pulls."""
    queue: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
    assert client.call("min_offset", **queue) == 0
    end = client.call("max_offset", **queue)
    rows: list[list[Any]] = client.call("read_queue", **{**queue, "from": 0}, until=end, most=7)
    return rows


def _consume_all(client: ClientProcess, namesrv: str, topic: str, wanted: dict[Place, str]) -> None:
    """Consume with a new group. The group begins at the first message and receives each message
    once."""
    client.call("collect", name=topic, namesrv=namesrv, group="pushed", topics=[topic])
    wait_for(lambda: client.call("collected_count", topic=topic) >= len(wanted))
    rows = client.call("places", topic=topic)
    client.call("stop_collecting", name=topic)
    assert sorted(rows) == sorted([body, *place] for place, body in wanted.items())


def _look_up(client: ClientProcess, topic: str, queue_id: int, wanted: dict[Place, str]) -> None:
    """Compare offsets, keys and times of messages in the tier and in the local store."""
    queue: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
    end = max(place.queue_offset for place in wanted if place.queue_id == queue_id) + 1
    assert client.call("min_offset", **queue) == 0
    assert client.call("max_offset", **queue) == end
    times = {}
    for offset in (0, end // 2, end - 1):
        key = wanted[Place(queue_id, offset)]
        (found,) = client.call("query_by_key", topic=topic, key=key)
        assert (found["body"], found["queue_offset"]) == (key, offset)
        times[offset] = found["store_timestamp"]
    assert client.call("earliest_time", **queue) == times[0]
    for offset, time_ms in times.items():
        first = client.call("search_offset", **queue, time_ms=time_ms)
        assert first <= offset
        assert client.call("search_offset", **queue, time_ms=time_ms + 1) > offset
    assert client.call("search_offset", **queue, time_ms=0) == 0


def test_without_a_tier_a_queue_begins_where_the_local_store_does(
    client: ClientProcess, tmp_path: Path
) -> None:
    topic = "Cold-DISABLE"
    with _cold_broker(tmp_path, topic, "DISABLE") as broker:
        client.call("start_reader", namesrv=broker.namesrv, group="readers")
        _load(client, broker, topic)
        client.call("stop_load")
        broker.clean()
        (queue_id, *_) = [q for q in QUEUES if broker.local_minimum(q)]
        queue: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
        first, end = broker.local_minimum(queue_id), broker.count(queue_id)
        assert client.call("min_offset", **queue) == first
        rows = client.call("read_queue", **{**queue, "from": first}, until=end)
        assert [offset for offset, _ in rows] == list(range(first, end))


def test_cold_messages_are_found_by_unique_id_and_a_live_group_is_sent_back_to_them(
    client: ClientProcess, tmp_path: Path
) -> None:
    topic, count = "Replayed", 300
    with _cold_broker(tmp_path, topic, "NOT_IN_DISK") as broker:
        client.call("start_producer", name="r", namesrv=broker.namesrv, group="r")
        message: dict[str, Any] = {"name": "r", "topic": topic, "queue_id": 0}
        client.call("send", name="r", topic=topic, body="makes the topic")
        sent = [
            client.call("send_to_queue", **message, body=f"{number} ".ljust(400, "x"))
            for number in range(count)
        ]
        broker.move_border()
        last = client.call("send_to_queue", **message, body="hot")
        cold = next(place for place in sent if place["queue_offset"] < broker.local_minimum(0))
        for place in (cold, last):
            found = _mqadmin(client, broker, "queryMsgByUniqueKey", topic, "-i", place["msg_id"])
            assert re.search(rf"Queue Offset: +{place['queue_offset']}\b", found), found
        # The id that names a byte of the commit log ends with that byte, as in Java.
        found = _mqadmin(client, broker, "queryMsgById", topic, "-i", last["offset_msg_id"])
        assert re.search(rf"Queue Offset: +{last['queue_offset']}\b", found), found
        gone = _mqadmin(client, broker, "queryMsgById", topic, "-i", cold["offset_msg_id"])
        assert "QueryMsgByIdSubCommand command failed" in gone

        client.call("collect", name="r", namesrv=broker.namesrv, group="back", topics=[topic])
        wait_for(lambda: client.call("collected_count", topic=topic) >= count + 2)
        client.call("start_reader", namesrv=broker.namesrv, group="readers")
        queue: dict[str, Any] = {"topic": topic, "queue_id": 0}
        time_ms = client.call("earliest_time", **queue)
        assert client.call("search_offset", **queue, time_ms=time_ms) == 0
        _mqadmin(client, broker, "resetOffsetByTime", topic, "-g", "back", "-s", str(time_ms))
        wait_for(lambda: _count_deliveries(client, topic) >= 2 * (count + 1))
        client.call("stop_collecting", name="r")


def _mqadmin(
    client: ClientProcess, broker: ColdBroker, command: str, topic: str, *more: str
) -> str:
    arguments = [command, "-t", topic, *more, "-n", broker.namesrv]
    return cast(str, client.call("mqadmin", args=arguments))


def _count_deliveries(client: ClientProcess, topic: str) -> int:
    """Return the number of deliveries of the first queue's messages. At most two deliveries of each
    message are counted, because messages that were in flight during the reset of the group's offset
    may be delivered more often."""
    offsets = [row[2] for row in client.call("places", topic=topic) if row[1] == 0]
    return sum(min(offsets.count(offset), 2) for offset in set(offsets))
