"""A whole store runs over a chunk log whose requests fail (faults W01, W04 and T33). Another store
takes over with a copy of the first store's state, while the first one continues to run, and a
follower reads. No acknowledged message is lost, duplicated, or mixed with messages of a deleted
topic."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest

from tests.kit.configured_broker import conf
from tests.kit.random_worlds.chunk_tier import ChunkTier, ChunkWorld
from tests.kit.random_worlds.objects import RandomClient, RandomObjects
from tests.kit.random_worlds.store import KEYS, TOPICS, RandomStore
from tieredstore import registry
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.metadata.following import TierFollower
from tieredstore.message.encoding import Message
from tieredstore.scan import location
from tieredstore.tier.store import TieredMessageStore

PROVIDER = "tests.kit.random_worlds.chunk_tier:ChunkTier"


class Zombie:
    """A store that another store has replaced. The replaced store does not know it and continues to
    run."""

    def __init__(self, run: Run) -> None:
        self.store, self.local = run.store, run.local
        self.provider = run.provider


class Run(RandomStore):
    """One run of the test. `ever` has all messages that were ever acknowledged, by topic and queue
    offset. Messages of deleted topics are included."""

    keys: ClassVar[dict[str, object]] = {**KEYS, "tieredBackendServiceProvider": PROVIDER}

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        objects = RandomObjects(
            random.Random(seed + 1), self.clock, min_part_bytes=300, page_keys=7
        )
        self.objects = objects
        ChunkTier.world = self.world = ChunkWorld(objects)
        self.folder = root
        self.copies = 0
        self.ever: dict[tuple[str, int], bytes] = {}
        self.served: set[tuple[str, int]] = set()
        self.zombie: Zombie | None = None
        self.reader: TieredMessageStore | None = None

    def open(self) -> None:
        super().open()
        self.provider = self.world.newest
        client = self.provider.client
        assert isinstance(client, RandomClient)
        self.client = client

    @contextmanager
    def faults(self, *rates: float) -> Iterator[float]:
        self.objects.rate = self.rng.choice(rates)
        try:
            yield self.objects.rate
        except Unavailable:
            pass
        finally:
            self.objects.rate = 0

    def may_fail_without_faults(self) -> bool:
        return True  # late requests may take effect now, or a name be free only later

    def put_one(self, topic: str, size: int) -> None:
        super().put_one(topic, size)
        offset = self.end[topic] - 1
        assert (topic, offset) not in self.ever, "an offset is given out again"
        self.ever[topic, offset] = self.life[topic][offset]

    def begin_again(self, topic: str, offset: int) -> None:
        super().begin_again(topic, offset)
        for key in [one for one in self.ever if one[0] == topic and one[1] >= offset]:
            assert key not in self.served, f"{key}: given out again, and a follower has it"
            del self.ever[key]

    def delete(self) -> None:
        self.client.refuses_deletions = self.rng.random() < 0.2
        try:
            super().delete()
        finally:
            self.client.refuses_deletions = False

    def maintain(self) -> None:
        self.clock.advance(self.rng.choice([1_000, 31_000, 61_000, 700_000]))
        with self.faults(0, 0, 0.1):
            self.provider.run_maintenance(sweep=self.rng.random() < 0.5)

    def deliver(self) -> None:
        self.objects.deliver()

    def restart(self) -> None:
        self.world.group_bytes = self.rng.choice([0, 600, 2_000])
        super().restart()

    def crash(self) -> None:
        self.local.flush()
        self.client.is_dead = True
        for service in (self.store.dispatcher, self.store.expiry):
            service.stop()
        # Its lock file is the same one: by it a node knows that the state is its own.
        self.replace_by_copy("store", kept="tieredstore.lock")
        if self.rng.random() < 0.3:
            self.deliver()
        self.world.group_bytes = self.rng.choice([0, 600, 2_000])
        self.open()

    # Another node takes over with a copy of the state, and the former one lives on

    def take_over(self) -> None:
        if self.zombie is not None:
            return
        self.local.flush()
        writer = self.store.flat_files._writer
        assert writer is not None
        self.zombie = Zombie(self)
        self.copies += 1
        root = self.folder / str(self.copies)
        shutil.copytree(self.root / "store", root / "store", ignore=shutil.ignore_patterns("lock"))
        self.root = root
        self.world.take_over_epoch = writer.epoch_number
        self.open()
        self.world.take_over_epoch = 0

    def let_the_zombie_act(self) -> None:
        zombie = self.zombie
        if zombie is None:
            return
        acts: dict[str, Callable[[Zombie], object]] = {
            "upload": self._zombie_uploads,
            "maintain": lambda one: one.provider.run_maintenance(sweep=True),
            "expire": lambda one: one.store.expiry.run_once(),
            "delete": lambda one: one.store.delete_topics({self.rng.choice(TOPICS)}),
            "index": lambda one: one.store.index.seal_and_upload(force=True),
            "backup": lambda one: one.store.backup.run_once(is_last=True),
            "put": self._zombie_puts,
            "stop": self._stop_zombie,
        }
        name = self.rng.choice(list(acts))
        self.steps.append(f"zombie:{name}")
        self.objects.rate = self.rng.choice([0, 0, 0.1])
        try:
            acts[name](zombie)
        except TieredStoreError:
            pass
        finally:
            self.objects.rate = 0

    def _zombie_uploads(self, zombie: Zombie) -> None:
        for outcome in zombie.store.dispatcher.scan(force=True):
            assert outcome.error is not None or not outcome.messages, f"a zombie uploaded {outcome}"

    def _zombie_puts(self, zombie: Zombie) -> None:
        for number in range(3):
            topic = self.rng.choice(TOPICS)
            zombie.store.put_message(Message.create(topic, b"zombie%d" % number, keys=["k1"]))

    def _stop_zombie(self, zombie: Zombie) -> None:
        self.objects.rate = 0
        self.zombie = None
        zombie.store.shutdown()

    # A reader goes with the tier

    def follow(self) -> None:
        if self.reader is None and not self._begin_to_follow():
            return
        assert self.reader is not None
        self.follower.follow(self.reader)
        leaving = {topic for topic in TOPICS if self.store.flat_files.is_leaving(topic)}
        for topic in TOPICS:
            found = self.read(topic, self.reader)
            for offset, body in found.items():
                self.served.add((topic, offset))
                assert self.ever.get((topic, offset)) == body, f"{topic}: the follower mixes"
            if topic not in leaving:  # else the tier does not know yet
                dead = found.keys() - self.life[topic].keys()
                assert not dead, f"{topic}: the follower serves {sorted(dead)[:5]}, deleted"
            sure = {one for one in self.find_kept(topic) if one < self.floor[topic]}
            assert sure <= found.keys(), f"{topic}: the follower lacks {sure - found.keys()}"

    def _begin_to_follow(self) -> bool:
        state = self.folder / "reader" / "store"
        (state / "config").mkdir(parents=True)
        config = conf(state.parent, **self.keys).config
        place = _Place("memory://", config, config.broker_name, state)
        try:
            self.follower = TierFollower.open(place, state, self.clock)
        except Invalid:  # nothing is there, or all of it is deleted
            assert not any(
                offset < self.floor[topic] for topic in TOPICS for offset in self.find_kept(topic)
            )
            shutil.rmtree(state.parent)
            return False
        keys = {**self.keys, "brokerRole": "SLAVE", "messageIndexEnable": "false"}
        reader = registry.message_store(conf(state.parent, **keys), self.clock)
        assert isinstance(reader, TieredMessageStore)
        reader.load()
        reader.start()
        self.reader = reader
        return True

    def close(self) -> None:
        for store in (self.zombie.store if self.zombie else None, self.reader):
            if store is not None:
                with suppress(TieredStoreError):
                    store.shutdown()
        super().close()


class _Place(location.TierLocation):
    """Location of the tier. It can be used only in this process."""

    def connect(self) -> object:  # type: ignore[override]
        return ChunkTier.world.connect()


def run(root: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "tier_at", lambda config, _url: config)
    one = Run(root, seed)
    one.go(
        steps,
        [
            *one.actions,
            (one.deliver, 3),
            (one.maintain, 5),
            (one.take_over, 3),
            (one.let_the_zombie_act, 6),
            (one.follow, 4),
        ],
    )


@pytest.mark.parametrize("seed", range(2))
def test_w01_t33_a_store_beside_one_that_it_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run(tmp_path, seed, 60, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_w01_t33_a_store_beside_one_that_it_replaced_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run(tmp_path, seed, 120, monkeypatch)
