"""Random tests of a whole tiered store. The test writes, uploads, expires, cleans, stops and kills
the store, and deletes topics. The oracle is the list of acknowledged messages."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.kit.configured_broker import conf
from tests.kit.local_stores import START_MS
from tests.kit.random_worlds.clock import StoreClock
from tieredstore import registry
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Corrupt, Fenced, TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

HOUR_MS = 3_600_000
TOPICS = ("A", "B", "C")
RETENTION_HOURS = 24
KEYS: dict[str, object] = {
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredStorageLevel": "FORCE",
    "mappedFileSizeCommitLog": 1 << 14,
    "mappedFileSizeConsumeQueue": 400,
    "maxIndexNum": 1000,
    "tieredStoreGroupCommitTimeout": 0,
    "tieredStoreCommitLogMaxSize": 3_000,
    "tieredStoreConsumeQueueMaxSize": 400,
    "tieredStoreIndexFileMaxHashSlotNum": 10,
    "tieredStoreIndexFileMaxIndexNum": 40,
    "tieredStoreFileReservedTime": RETENTION_HOURS,
    "fileReservedTime": 6,
    "readAheadCacheSizeBytes": 1 << 16,
    "tieredStoreBackupInterval": 60_000,
    "tieredStoreBacklog": "all",
}


class RandomStore:
    """One broker's store. Subclasses choose the tier's location and its failures. `life`: bodies of
    each topic's messages since its last deletion, by queue offset. `times`: their put times.
    `dead`: bodies of deleted messages. `end`: next offset of each topic. All messages below `floor`
    are in the tier."""

    keys: ClassVar[dict[str, object]] = KEYS

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root / "0"
        self.root.mkdir()
        self.clock = StoreClock(START_MS)
        self.steps: list[str] = []
        self.number = 0
        self.life: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self.times: dict[str, dict[int, int]] = {topic: {} for topic in TOPICS}
        self.dead: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.end = dict.fromkeys(TOPICS, 0)
        self.floor = dict.fromkeys(TOPICS, 0)

    def open(self) -> None:
        store = registry.message_store(conf(self.root, **self.keys), self.clock)
        assert isinstance(store, TieredMessageStore)
        store.load()
        try:
            store.start()
        except BaseException:
            store.shutdown()
            raise
        self.store = store
        local = store.next_store
        assert isinstance(local, DefaultMessageStore)
        self.local = local

    @contextmanager
    def faults(self, *rates: float) -> Iterator[float]:
        """Let requests to the tier fail within the block, at a rate drawn from the given ones.
        Yield the rate. A temporary error ends the block and is suppressed."""
        raise NotImplementedError

    # Steps

    def put(self) -> None:
        topic = self.rng.choice(TOPICS)
        for _ in range(self.rng.choice([1, 1, 2, 5, 20])):
            self.put_one(topic, self._choose_size())
        self.local.wait_until_dispatched()

    def _choose_size(self) -> int:
        is_large = self.rng.random() < 0.3
        return self.rng.choice([0, 10, 200, 1_000, 3_500] if is_large else [0, 10, 50])

    def put_one(self, topic: str, size: int) -> None:
        self.clock.advance(self.rng.choice([1, 1_000]))
        self.number += 1
        body = b"%s-%d-" % (topic.encode(), self.number) + b"x" * size
        key = f"k{self.number % 7}"
        result = self.store.put_message(Message.create(topic, body, keys=[key]))
        assert result.ok, result.reason
        offset = result.queue_offset
        if not self.life[topic] and self.floor[topic] <= offset < self.end[topic]:
            self.begin_again(topic, offset)
        assert offset == self.end[topic], f"{topic}: an offset is given out again, or left out"
        self.life[topic][offset] = body
        self.times[topic][offset] = self.clock.now_ms()
        self.end[topic] = offset + 1

    def begin_again(self, topic: str, offset: int) -> None:
        """Expect a deleted topic to continue at `offset`, because neither the log nor the tier has
        a record of any later message."""
        self.steps.append(f"({topic} begins at {offset})")
        self.end[topic] = offset

    def upload(self) -> None:
        self.local.flush()
        is_well = False
        with self.faults(0, 0, 0.05, 0.2) as rate:
            outcomes = self.store.dispatcher.scan(force=True)
            for outcome in outcomes:
                assert not isinstance(outcome.error, (Corrupt, Fenced)), outcome
            is_well = not rate and all(outcome.error is None for outcome in outcomes)
            assert rate or is_well or self.may_fail_without_faults(), outcomes
        if is_well:
            for topic in TOPICS:
                self._require_uploaded(topic)

    def may_fail_without_faults(self) -> bool:
        """Return whether an upload may fail because of an earlier fault."""
        return False

    def _require_uploaded(self, topic: str) -> None:
        if not self.life[topic]:
            return
        file = self.store.flat_files.get(topic, 0)
        end = None if file is None else file.consume_queue_commit_offset
        assert end == self.end[topic], f"{topic}: a scan without error left the tier at {end}"
        self.floor[topic] = self.end[topic]

    def upload_index(self) -> None:
        with self.faults(0, 0.1):
            self.store.index.seal_and_upload(force=self.rng.random() < 0.5)

    def back_up(self) -> None:
        with self.faults(0):
            self.store.backup.run_once(is_last=True)

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice([1, 5, 13]) * HOUR_MS)

    def expire(self) -> None:
        with self.faults(0, 0, 0.1):
            self.store.expiry.run_once()

    def clean(self) -> None:
        self.local.cleaning._manual_rounds = 20
        self.local.cleaning.run_once()

    def delete(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.dead[topic] |= set(self.life[topic].values())
        with self.faults(0, 0, 0.2):
            self.store.delete_topics({topic})
        self.life[topic], self.times[topic] = {}, {}

    def restart(self) -> None:
        with self.faults(0, 0, 0.05):
            self.store.shutdown()
        self.open()

    def crash(self) -> None:
        """Kill the process, which leaves its files as they are and writes nothing more."""
        raise NotImplementedError

    def replace_by_copy(self, *names: str, kept: str = "") -> None:
        """Stop the store and replace folders by earlier copies. The file `kept` is not replaced."""
        killed = self.root / "killed"
        for name in names:
            shutil.copytree(self.root / name, killed / name, ignore=shutil.ignore_patterns("lock"))
        with suppress(TieredStoreError):
            self.store.shutdown()
        for name in names:
            folder = self.root / name
            for path in folder.iterdir():
                if path.name == kept:
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in (killed / name).iterdir():
                if path.name != kept:
                    shutil.move(path, folder / path.name)
        shutil.rmtree(killed)

    # Invariants after each step

    def read(self, topic: str, store: Any = None) -> dict[int, bytes]:
        """Return the messages that a consumer receives from offset 0, by queue offset."""
        store = self.store if store is None else store
        found: dict[int, bytes] = {}
        offset = 0
        while True:
            result = store.get_message("g", topic, 0, offset, self.rng.choice([1, 7, 32]))
            if result.status is GetMessageStatus.FOUND:
                for message in result.messages:
                    assert message.queue_offset not in found, "a message comes twice"
                    found[message.queue_offset] = bytes(message.body)
                assert result.next_begin_offset > offset, "a consumer makes no progress"
            elif result.next_begin_offset <= offset:
                return found
            offset = result.next_begin_offset

    def check(self) -> None:
        assert self.store.flat_files.broken_queues == {}
        for topic in TOPICS:
            found = self.read(topic)
            for offset, body in found.items():
                assert self.life[topic].get(offset) == body, (
                    f"{topic}@{offset} is {body[:20]!r}, of a deleted generation: "
                    f"{body in self.dead[topic]}"
                )
            lost = sorted(self.find_kept(topic) - found.keys())
            assert not lost, f"{topic}: {lost[:9]} are lost, {sorted(found)[:2]}.. are there"
            for number in (0, 3, 6):
                for message in self.store.query_message(topic, f"k{number}", 99, 0, 2**62):
                    put = self.life[topic].get(message.queue_offset)
                    assert put == bytes(message.body), f"{topic}: a key finds another message"

    def find_kept(self, topic: str) -> set[int]:
        """Return the offsets of unexpired messages."""
        before_ms = self.clock.now_ms() - (RETENTION_HOURS - 1) * HOUR_MS
        return {offset for offset, put_ms in self.times[topic].items() if put_ms > before_ms}

    def go(self, steps: int, actions: list[tuple[Callable[[], None], int]]) -> None:
        """Run `steps` random actions, chosen by their weights, and then a restart."""
        self.open()
        choice = [action for action, weight in actions for _ in range(weight)]
        try:
            for action in [self.rng.choice(choice) for _ in range(steps)] + [self.restart]:
                self.steps.append(action.__name__)
                action()
                self.check()
        except BaseException as error:
            error.add_note(f"{len(self.steps)} steps, the last: {' '.join(self.steps[-60:])}")
            raise
        finally:
            self.close()

    def close(self) -> None:
        with suppress(TieredStoreError):
            self.store.shutdown()

    @property
    def actions(self) -> list[tuple[Callable[[], None], int]]:
        """Return the actions that every kind of store has."""
        return [
            (self.put, 10),
            (self.upload, 8),
            (self.upload_index, 2),
            (self.back_up, 1),
            (self.pass_time, 2),
            (self.expire, 3),
            (self.clean, 3),
            (self.delete, 2),
            (self.restart, 2),
            (self.crash, 3),
        ]
