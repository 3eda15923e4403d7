"""Threads put, read, query keys, upload, expire, delete and recreate topics, and move the clock,
all concurrently. No reader gets a wrong message, no call fails, and the final state is intact."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tieredstore
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage

HOUR_MS = 3_600_000
TOPICS = ("A", "B", "C")
DELETED = ("C",)
AHEAD = 20_000
"""Maximum backlog of a queue, in messages. It is limited, because the tier creates small segments
more slowly than the store puts messages."""
SECONDS = [2, pytest.param(600, marks=pytest.mark.slow)]
SMALL: dict[str, object] = {
    "tieredStorageLevel": "FORCE",
    "tieredStoreCommitLogMaxSize": 200_000,
    "tieredStoreConsumeQueueMaxSize": 4_000,
    "tieredStoreFileReservedTime": 2,
}


def make_body(topic: str, number: int) -> bytes:
    return f"{topic}:{number}:".encode() + b"%d" % (number * 7919) * (number % 50)


class Mix:
    """State that the threads share. `numbers` maps each offset to the number of the message that
    was first read at this offset."""

    def __init__(self, world: TieredLocal) -> None:
        self.world = world
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.numbers: dict[tuple[str, int], int] = {}
        self.ends = dict.fromkeys(TOPICS, 0)
        self.read = 0

    def run(self, act: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self.stop.is_set():
                act(chance)
        except BaseException as error:  # told by the test
            self.errors.append(error)
            self.stop.set()

    def check(self, topic: str, message: StoredMessage) -> None:
        body = bytes(message.body)
        name, number, _ = body.split(b":", 2)
        assert (name.decode(), message.topic) == (topic, topic)
        assert body == make_body(topic, int(number))
        place = topic, message.queue_offset
        assert self.numbers.setdefault(place, int(number)) == int(number), place
        self.read += 1

    def put(self, topic: str) -> Callable[[random.Random], None]:
        numbers = iter(range(1 << 40))

        def act(chance: random.Random) -> None:
            for _ in range(chance.randrange(1, 200)):
                number = next(numbers)
                message = Message.create(topic, make_body(topic, number), keys=[f"k{number % 97}"])
                result = self.world.store.put_message(message)
                assert result.ok, result.reason
                assert self.numbers.setdefault((topic, result.queue_offset), number) == number
                self.ends[topic] = result.queue_offset + 1
            self.world.clock.advance(1_000)
            time.sleep(0.01)
            while self.count_waiting(topic) > AHEAD and not self.stop.is_set():
                time.sleep(0.05)

        return act

    def count_waiting(self, topic: str) -> int:
        """Count the messages that are not uploaded yet. Return None if the tier does not have the
        queue."""
        file = self.world.store.flat_files.get(topic, 0)
        return 0 if file is None else self.ends[topic] - file.consume_queue_commit_offset

    def get(self, chance: random.Random) -> None:
        topic = chance.choice(TOPICS)
        offset = chance.randrange(self.ends[topic] + 1)
        for _ in range(chance.randrange(1, 8)):
            result = self.world.store.get_message("g", topic, 0, offset, 32)
            if result.status is not GetMessageStatus.FOUND:
                return
            for message in result.messages:
                assert message.queue_offset >= offset
                self.check(topic, message)
            offset = result.next_begin_offset

    def query(self, chance: random.Random) -> None:
        topic = chance.choice(TOPICS)
        key = f"k{chance.randrange(97)}"
        for message in self.world.store.query_message(topic, key, 32, 0, 2**62):
            assert key in message.keys
            self.check(topic, message)
        time.sleep(0.005)

    def keep(self, chance: random.Random) -> None:
        store, clock = self.world.store, self.world.clock
        match chance.randrange(8):
            case 0:
                store.expiry.run_once()
            case 1:
                clock.advance(chance.choice([60_000, HOUR_MS]))
            case 2:
                store.delete_topics(set(DELETED))
            case 3:
                store.index.seal_and_upload(force=True)
            case _:
                store.dispatcher.scan(force=True)


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_mix_of_everything_at_once_gives_no_wrong_message(tmp_path: Path, seconds: int) -> None:
    world = TieredLocal(tmp_path, **SMALL)
    mix = Mix(world)
    work = [*map(mix.put, TOPICS), mix.get, mix.get, mix.query, mix.keep]
    threads = [threading.Thread(target=mix.run, args=(act, seed)) for seed, act in enumerate(work)]
    for thread in threads:
        thread.start()
    mix.stop.wait(seconds)
    mix.stop.set()
    for thread in threads:
        thread.join()
    try:
        assert mix.errors == []
        assert mix.read > 0
        world.local.cleaning.stop()  # its hour comes at any time: loops that wait move the clock
        world.local.wait_until_dispatched()
        world.local.flush()
        world.store.dispatcher.scan(force=True)
        for topic in TOPICS:
            low = world.store.get_min_offset_in_queue(topic, 0)
            high = world.store.get_max_offset_in_queue(topic, 0)
            found = world.read(topic)
            assert [offset for offset, _ in found] == list(range(max(low, 0), max(high, 0)))
            for offset, body in found:
                assert body == make_body(topic, mix.numbers[topic, offset])
    finally:
        world.close()
    tier = tieredstore.open(f"file://{tmp_path / 'tier'}", state=tmp_path / "store")
    report = jobs.verify(tier)
    assert report["damage"] == 0, report["findings"]
    assert report["uncovered_bytes"] == 0
