"""A broker whose store, state and tier are replaced by copies, at random."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kit.belonging import Stopped
from tests.kit.configured_broker import conf
from tests.kit.exchanged.oracle import Mixed, Part, Queue, join
from tests.kit.exchanged.tier import KillableTier
from tests.kit.tiered_local import POSIX
from tieredstore import registry
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.message.encoding import Message
from tieredstore.providers.memory.objects import MemoryObjectClient

HOUR_MS = 3_600_000
TOPICS = "AB"
NAMES = ("store", "state", "tier")
_NOT_COPIED = shutil.ignore_patterns("lock", "tieredstore.lock")


@dataclass
class Copy:
    """A copied store, state and tier, with the folder that contains the copy."""

    folder: Path
    objects: MemoryObjectClient
    local: Part
    tier: Part


class World:
    """One broker and its oracle. Each action raises AssertionError if a message is lost or
    duplicated, or if the broker refuses to start with parts that belong together. `has_objects`
    chooses a tier of objects or of files (None: at random). `steps` lists all actions for failure
    reports. With `is_degraded`, queues may refuse uploads, because the store is newer than the
    state or tier. With `is_over`, the metadata must be rebuilt first. `given_up` lists the messages
    that an operator deleted from the tier, as topic, generation number, queue and offset."""

    def __init__(self, root: Path, seed: int, has_objects: bool | None = None) -> None:
        self.random = random.Random(seed)
        self.folder = root
        self.root = root / "broker"
        self.shared = KillableTier(root)
        objects = self.random.choice([True, False])
        self.has_objects = objects if has_objects is None else has_objects
        self.keys: dict[str, object] = {
            "tieredStoreCommitLogMaxSize": 3_000,
            "tieredStoreConsumeQueueMaxSize": 400,
            "tieredStorageLevel": self.random.choice(["NOT_IN_DISK", "NOT_IN_DISK", "FORCE"]),
            "mappedFileSizeCommitLog": 1 << 14,
            "fileReservedTime": 1,
            "tieredStoreFileReservedTime": 100_000,
        }
        if self.random.random() < 0.35:
            self.keys["storeType"] = "defaultRocksDB"
        self.local, self.tier = Part(), Part()
        self.copies: list[Copy] = []
        self.steps: list[str] = []
        self.is_degraded = self.is_over = False
        self.given_up: set[tuple[str, int, int, int]] = set()
        self._lives = self._bodies = self._folders = 0
        self.open()

    @property
    def store(self) -> Path:
        return self.root / "store"

    def open(self, **keys: object) -> None:
        """Start the broker. If another broker has acquired the epoch, take it back as the error
        message explains. Raises the store's other errors."""
        try:
            self.broker = self._open(**keys)
        except Fenced as error:
            found = re.search(r"TakeOverEpoch=(\d+)", str(error))
            if found is None:
                raise
            self.shared.take_over_epoch = int(found[1])
            self.broker = self._open(**keys)

    def _open(self, **keys: object) -> Stopped:
        if self.has_objects:
            return self.shared.open(self.root, **{**self.keys, **keys})
        return Stopped(self.root, self.shared.clock, **{**self.keys, **keys})

    # Checks

    def check(self) -> None:
        """Check that all expected messages can be read, and that each queue assigns an unused
        offset next."""
        source = self.broker.local.dispatch_source
        for topic, life in join(self.local, self.tier).items():
            for queue_id, queue in life.queues.items():
                assert dict(self.broker.read(topic, queue_id)) == queue.bodies, (topic, queue_id)
                next_offset = source.find_next_offset(QueueKey(topic, queue_id))
                assert next_offset >= queue.end, (topic, queue_id)

    # Actions of a broker

    def put(self) -> None:
        topic, queue_id = self.random.choice(TOPICS), self.random.choice([0, 1])
        expected = join(self.local, self.tier).get(topic)
        if expected is None:
            self._lives += 1
        number = self._lives if expected is None else expected.number
        bodies = [
            self._make_body() + b"x" * self.random.choice([0, 0, 300])
            for _ in range(self.random.choice([1, 3, 12]))
        ]
        offsets = self.broker.put(topic, *bodies, queue_id=queue_id)
        end = 0 if expected is None else expected.queue(queue_id).end
        assert min(offsets) >= end, f"{topic}/{queue_id}: {min(offsets)} was given out before"
        queue = self.local.begin(topic, number).queue(queue_id)
        queue.bodies.update(zip(offsets, bodies, strict=True))
        queue.end = offsets[-1] + 1

    def _make_body(self) -> bytes:
        self._bodies += 1
        return b"m%d" % self._bodies

    def upload(self) -> None:
        self.broker.local.flush()
        scan = self.broker.store.dispatcher.scan
        failed = [one for one in scan(force=True) if one.error]
        if failed:
            failed = [one for one in scan(force=True) if one.error]
        bad = {(one.key.topic, one.key.queue_id): str(one.error) for one in failed}
        for topic, life in self.local.topics.items():
            for queue_id, queue in life.queues.items():
                if (topic, queue_id) in bad:
                    continue
                self._take_over(topic, queue_id, queue, queue.end)
        for error in bad.values():
            assert self.is_degraded, error
            assert "not written to" in error

    def clean(self) -> None:
        """Expire local files, and check that only uploaded messages are deleted."""
        self.shared.clock.advance(26 * HOUR_MS)
        for _ in range(4):
            self.broker.put("Filling", b"f" * 3_000)
        self.upload()
        for _ in range(2):
            self.broker.local.cleaning._manual_rounds = 20
            self.broker.local.cleaning.run_once()
        for topic, life in self.local.topics.items():
            for queue_id, queue in life.queues.items():
                held = self.broker.local.dispatch_source.queue_range(QueueKey(topic, queue_id))
                assert held is not None, (topic, queue_id)
                there = self.tier.find_queue(topic, queue_id).bodies
                for offset in [one for one in queue.bodies if one < held.min_offset]:
                    body = queue.bodies.pop(offset)
                    if (topic, life.number, queue_id, offset) not in self.given_up:
                        assert there.get(offset) == body, (topic, queue_id, offset)

    def delete(self) -> None:
        topic = self.random.choice(TOPICS)
        life = join(self.local, self.tier).get(topic)
        if life is not None:
            self.broker.store.delete_topics({topic})
            for part in (self.local, self.tier):
                part.deleted.add(life.number)
                part.topics.pop(topic, None)

    # Copies

    def copy(self) -> None:
        """Copy the disks of the running broker."""
        self.broker.local.flush()
        self.copies.append(self.copy_parts())

    def copy_parts(self) -> Copy:
        """Copy store, state and tier at one point in time. Repeat the copy if the broker wrote in
        the meantime."""
        while True:
            before = self._list_files()
            copied = self._copy_now()
            if self._list_files() == before:
                return copied

    def _copy_now(self) -> Copy:
        self._folders += 1
        folder = self.folder / f"copy{self._folders}"
        shutil.copytree(self.store, folder / "store", ignore=_NOT_COPIED)
        if (self.root / "tier").exists():
            shutil.copytree(self.root / "tier", folder / "tier")
        return Copy(folder, self.shared.copy_objects(), self.local.copy(), self.tier.copy())

    def _list_files(self) -> tuple[int, dict[Path, tuple[int, int]]]:
        """Return the number of objects, and each file with its size and time."""
        found = {}
        for path in self.root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found[path] = (status.st_size, status.st_mtime_ns)
        return len(self.shared.objects._store.objects), found

    def place(self, copied: Copy, names: tuple[str, ...]) -> None:
        """Replace the current store, state or tier by that of a copy."""
        if "store" in names:
            empty_but_config(self.store)
            shutil.copytree(
                copied.folder / "store",
                self.store,
                ignore=shutil.ignore_patterns("config"),
                dirs_exist_ok=True,
            )
            self.local = copied.local.copy()
        if "state" in names:
            replace_folder(self.store / "config", copied.folder / "store" / "config")
        if "tier" in names:
            replace_folder(self.root / "tier", copied.folder / "tier")
            self.shared.put_objects(copied.objects)
            self.shared.put_objects(self.shared.copy_objects())
            self.tier = copied.tier.copy()

    # Stops and starts

    def stop(self, *, is_killed: bool) -> None:
        if not is_killed:
            self.upload()
            self.broker.close()
            return
        self.broker.local.flush()
        self.broker.store.dispatcher.stop()
        self._note_uploaded()
        at_end = self.copy_parts()
        self.shared.kill_clients()
        with contextlib.suppress(TieredStoreError):
            self.broker.close()
        self.place(at_end, NAMES)

    def _note_uploaded(self) -> None:
        """Record the messages that the first upload round after a start has uploaded."""
        for topic, life in self.local.topics.items():
            for queue_id, queue in life.queues.items():
                file = self.broker.store.flat_files.get(topic, queue_id)
                if file is not None and file.read_only_reason is None:
                    self._take_over(topic, queue_id, queue, file.consume_queue_commit_offset)

    def _take_over(self, topic: str, queue_id: int, queue: Queue, end: int) -> None:
        """Record in the oracle that a queue's local messages below an offset are in the tier."""
        there = self.tier.begin(topic, self.local.topics[topic].number).queue(queue_id)
        new = {one: body for one, body in queue.bodies.items() if there.end <= one < end}
        there.bodies.update(new)
        there.end = max(there.end, end)

    def run_java(self) -> None:
        """Run a Java broker without the tiering plugin, and put messages into one queue."""
        loaded = conf(self.root, **{**POSIX, **self.keys, "messageStorePlugIn": ""})
        store = registry.message_store(loaded, self.shared.clock)
        store.load()
        store.start()
        topic = self.random.choice(TOPICS)
        expected = join(self.local, self.tier).get(topic)
        life = self.local.topics.get(topic)
        if expected is not None and life is not None and life.number == expected.number:
            queue_id = self.random.choice(list(life.queues))
            queue = life.queues[queue_id]
            if expected.queues[queue_id].end == queue.end:
                for _ in range(self.random.choice([1, 5])):
                    body = self._make_body()
                    message = Message.create(topic, body, queue_id=queue_id, keys=["all"])
                    result = store.put_message(message)
                    assert result.ok
                    queue.bodies[result.queue_offset] = body
                    queue.end = result.queue_offset + 1
        store.wait_until_dispatched()
        store.shutdown()

    def restart(self) -> None:
        """Stop or kill the broker, replace its store, state or tier by copies, and restart it. A
        refused start must change no segment, and must succeed once the replacement is undone."""
        self.stop(is_killed=self.random.random() < 0.4)
        newest = self.copy_parts()
        names: tuple[str, ...] = ()
        if self.random.random() < 0.15:
            self.run_java()
        elif self.copies and self.random.random() < 0.7:
            names = tuple(name for name in NAMES if self.random.random() < 0.45)
            for name in names:
                number = self.random.randrange(len(self.copies))
                self.steps.append(f"{name} of copy {number}")
                self.place(self.copies[number], (name,))
        mixed = self._find_mixed()
        before = self._read_segments()
        refusal = self._try_open()
        if refusal and not names and self.is_degraded and "rebuild the metadata" in refusal.lower():
            # The last topic of older metadata was deleted. An operator follows the message.
            self.is_over = True
            return
        if refusal:
            assert names, f"refused without an exchange: {refusal}"
            after = self._read_segments()
            assert {name: after.get(name) for name in before} == before, f"changed: {refusal}"
            self.place(newest, names)
            self.local, self.tier = newest.local, newest.tier
            self.open()
        else:
            assert not mixed, f"started, though two histories were mixed: {mixed}"
            self.is_degraded |= any(name != "store" for name in names)
        self.check()

    def _try_open(self) -> str:
        """Try to start the broker. Return the reason if the start is refused, else an empty
        text."""
        try:
            self.open()
        except TieredStoreError as error:
            self.steps.append("refused")
            return str(error)
        return ""

    def _find_mixed(self) -> str:
        try:
            join(self.local, self.tier)
        except Mixed as error:
            return str(error)
        return ""

    def _read_segments(self) -> dict[str, bytes]:
        paths = (self.root / "tier").rglob("[0-9]*")
        return {str(path): path.read_bytes() for path in paths if path.is_file()}

    # Runs

    def choose(self) -> list[tuple[Callable[[], None], int]]:
        """Return the possible actions with their weights."""
        return [
            (self.put, 10),
            (self.upload, 6),
            (self.clean, 2),
            (self.delete, 1),
            (self.copy, 4),
            (self.restart, 6),
            (self.check, 2),
        ]

    def run(self, count: int, last: Callable[[], None]) -> None:
        """Run `count` random actions and a final restart."""
        actions = self.choose()
        weights = [weight for _, weight in actions]
        picked = self.random.choices([action for action, _ in actions], weights, k=count)
        try:
            for action in (*picked, last):
                self.steps.append(action.__name__)
                action()
                if self.is_over:
                    return
        except BaseException as error:
            error.add_note(" ".join(self.steps))
            raise
        finally:
            with contextlib.suppress(TieredStoreError):
                self.broker.close()


def empty_but_config(store: Path) -> None:
    """Delete everything in a store's folder except `config`."""
    for path in store.iterdir():
        if path.name != "config":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_folder(folder: Path, by: Path) -> None:
    """Replace a folder by a copy of another one, or by an empty folder if that one does not
    exist."""
    shutil.rmtree(folder, ignore_errors=True)
    if by.exists():
        shutil.copytree(by, folder)
