"""A broker whose tier an operator repairs, resets or expires between runs, at random."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.kit.command_line import tieredstore
from tests.kit.exchanged.oracle import join
from tests.kit.exchanged.world import HOUR_MS, World, empty_but_config
from tests.kit.generations import TOPICS


class JobWorld(World):
    """A broker with a Posix tier. Unlike in `World`, its store, state and tier are never replaced
    by copies. `restores` counts restores of the store from the tier alone."""

    def __init__(self, root: Path, seed: int) -> None:
        self.is_lost = False
        self.restores = 0
        super().__init__(root, seed, has_objects=False)

    def open(self, **keys: object) -> None:
        """Start the broker with a topic table, so that its backups include one."""
        topics = self.store / "config" / "topics.json"
        if not topics.exists():
            topics.parent.mkdir(parents=True, exist_ok=True)
            topics.write_text(TOPICS)
        super().open(**keys)

    def choose(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.put, 10),
            (self.upload, 6),
            (self.clean, 2),
            (self.delete, 1),
            (self.restart, 2),
            (self.run_job, 6),
            (self.check, 2),
        ]

    def run_job(self) -> None:
        """Stop or kill the broker, run one job on the tier or the store, and restart the broker."""
        self.stop(is_killed=self.random.random() < 0.25)
        repairs = [self.rebuild, self.rebuild, self.expire, self.reset, self.reset_queue]
        lost = [self.lose_store, self.restore, self.restore]
        job = self.random.choice([*repairs, *lost, self.change_time])
        self.steps.append(job.__name__)
        self.is_lost = False
        job()
        self.open(tieredStoreAdopt=self.is_lost)
        self.forget_expired()
        self.check()
        if job in lost:
            self.put()
            self.upload()
            self.broker.close()
            self.open()
            self.check()

    def _call(self, *arguments: object) -> None:
        places = ("--tier", f"file://{self.root / 'tier'}", "--state", self.store)
        ran = tieredstore(*arguments, *places)
        if ran.code:
            assert "brokers in the tier: none" in ran.err, (arguments, ran.err)

    def _pick_topic(self) -> str | None:
        """Return a random topic of the tier that is not deleted, or None."""
        topics = [topic for topic in join(self.local, self.tier) if topic in self.tier.topics]
        return self.random.choice(topics) if topics else None

    # Jobs

    def rebuild(self) -> None:
        self._call("rebuild", "metadata", "--force")

    def expire(self) -> None:
        topic = self._pick_topic()
        if topic is not None:
            before_ms = self.shared.clock.now_ms() + self.random.choice([1, -20 * HOUR_MS])
            self._call("tier", "expire", topic, "--before", before_ms, "--yes")

    def reset(self) -> None:
        """Delete a topic's messages from the tier only."""
        topic = self._pick_topic()
        if topic is not None:
            self._call("tier", "reset", topic, "--yes")
            for queue_id, queue in self.tier.topics[topic].queues.items():
                self.give_up(topic, queue_id, queue.end)

    def reset_queue(self) -> None:
        """Delete a queue from the tier, so that the broker uploads it again from the local disk."""
        topic = self._pick_topic()
        if topic is None:
            return
        life = self.tier.topics[topic]
        queue_id = self.random.choice(list(life.queues))
        held = self.local.find_queue(topic, queue_id).bodies
        if held and self.local.topics[topic].number == life.number:
            first = min(held)
            self._call("tier", "reset", topic, "--queue", queue_id, "--to", first, "--yes")
            life.queues[queue_id].bodies.clear()
            life.queues[queue_id].end = first

    def lose_store(self) -> None:
        """Delete the local disk's content and sometimes also the metadata."""
        self.is_lost = True
        empty_but_config(self.store)
        if self.random.random() < 0.3:
            shutil.rmtree(self.store / "config")
            for life in self.tier.topics.values():  # an emptied queue tells no end
                life.queues = {
                    number: queue for number, queue in life.queues.items() if queue.bodies
                }
            self.rebuild()
        self.local.topics.clear()

    def restore(self) -> None:
        """Delete the local disk's content, and restore the store from its backup if there is
        one."""
        shutil.rmtree(self.store)
        self.local.topics.clear()
        ran = tieredstore(
            "restore", "--tier", f"file://{self.root / 'tier'}", "--store", self.store
        )
        if ran.code:
            assert "no backup of broker" in ran.err or "brokers in the tier: none" in ran.err
            self.is_lost = True
            self.rebuild()
        else:
            self.restores += 1

    def change_time(self) -> None:
        clock = self.shared.clock
        clock.set(clock.now_ms() + self.random.choice([-50, 50, 5]) * HOUR_MS)

    # Messages deleted by an operator

    def give_up(self, topic: str, queue_id: int, end: int) -> None:
        """Permanently delete a queue's messages below an offset from the tier. The local disk keeps
        them until its files expire."""
        for part in (self.tier, self.local):
            bodies = part.find_queue(topic, queue_id).bodies
            for offset in [one for one in bodies if one < end]:
                if part is self.tier:
                    del bodies[offset]
                else:
                    self.given_up.add((topic, self.local.topics[topic].number, queue_id, offset))

    def forget_expired(self) -> None:
        """Remove messages that expired in the tier from the oracle."""
        for file in self.broker.store.flat_files.files():
            if self.tier.find_queue(file.topic, file.queue_id).bodies:
                self.give_up(file.topic, file.queue_id, file.consume_queue_min_offset)
