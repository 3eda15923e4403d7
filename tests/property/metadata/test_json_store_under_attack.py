"""The metadata file of a tier is changed by single and batched calls, with and without the journal
of creations and deletions. Calls fail, and the process ends at any call (faults L01 and L05). After
each reload all acknowledged changes exist, and no topic id is used twice."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Unavailable
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.json_store import DefaultMetadataStore

TOPICS = ("A", "B", "C", "D")
TYPES = (FileSegmentType.COMMIT_LOG, FileSegmentType.INDEX)
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
Held = tuple[dict[str, int], frozenset[tuple[str, int]], dict[SegmentId, int]]
"""Content of the metadata: topic ids, queues, and the status of each segment."""


class Killed(BaseException):
    """The simulated end of the process."""


class FailingOperations:
    """Passes calls on to the real operations, and makes some fail. `rate` is the probability of a
    failure. `discard` never fails. The process ends at call number `end_at`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rate = 0.0
        self.count = 0
        self.end_at: int | None = None

    def __getattr__(self, name: str) -> Any:
        real = getattr(_REAL, name)
        if not callable(real):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.tick(name)
            found = real(*arguments, **named)
            if name == "open_append":
                return FailingAppend(self, found)
            self.tick(f"behind {name}")
            return found

        return call

    def tick(self, name: str) -> None:
        self.count += 1
        if self.is_over:
            raise Killed(name)
        if self.rate and self.rng.random() < self.rate and "discard" not in name:
            raise OSError(self.rng.choice(_ERRORS), f"injected: {name}")

    @property
    def is_over(self) -> bool:
        return self.end_at is not None and self.count >= self.end_at


class FailingAppend:
    """A file opened for appending. A write may end after any byte."""

    def __init__(self, operations: FailingOperations, inner: Any) -> None:
        self.operations = operations
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, data: bytes) -> Any:
        operations = self.operations
        operations.count += 1
        is_wrong = operations.rate and operations.rng.random() < operations.rate
        if not operations.is_over and not is_wrong:
            return self.inner.write(data)
        written = operations.rng.randrange(len(data) + 1)
        if written:
            self.inner.write(data[:written])
        if operations.is_over:
            raise Killed("write")
        raise OSError(errno.ENOSPC, "injected: write")

    def sync(self) -> Any:
        self.operations.tick("sync")
        return self.inner.sync()


_REAL = FileOperations()


class Run:
    """One run of the test. `held` has the acknowledged entries. After an error, `held` has the
    entries in memory, and `maybe` has the other states that a reload may find. `used` has the
    acknowledged topic ids."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = root / "config" / "tieredStoreMetadata.json"
        self.clock = ManualClock()
        self.held: Held = ({}, frozenset(), {})
        self.maybe: list[Held] = []
        self.used: set[int] = set()
        self.given: set[int] = set()
        self.is_killed = False
        self.steps: list[str] = []
        self.open()

    def open(self) -> None:
        self.operations = FailingOperations(self.rng)
        limits = Limits(max_journal_bytes=self.rng.choice([600, 3_000, 8 << 20]))
        operations: Any = self.operations
        self.store = DefaultMetadataStore(
            self.path, "b", self.clock, operations=operations, limits=limits
        )
        self.store.load()
        self.store.journal_structure(is_wanted=self.rng.random() < 0.6)

    def look(self) -> Held:
        topics = list(self.store.topics())
        return (
            {topic.topic: topic.topic_id for topic in topics},
            frozenset(
                (topic.topic, queue.queue_id)
                for topic in topics
                for queue in self.store.queues(topic.topic)
            ),
            {entry.id: entry.status for entry in self.store.segments()},
        )

    # Changes: each returns the expected entries, and the call that makes them

    def _change(self, kind: str, held: Held) -> tuple[Held, Callable[[], object] | None]:
        topics, queues, segments = dict(held[0]), set(held[1]), dict(held[2])
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(2)
        one = SegmentId(
            f"b/{topic}/{queue_id}", self.rng.choice(TYPES), self.rng.randrange(4) * 100
        )
        known = self.rng.choice(sorted(segments, key=str)) if segments else None
        call: Callable[[], object] | None = None
        if kind == "topic":
            call = lambda: self.store.add_topic(topic)
            topics.setdefault(topic, -1)
        elif kind == "queue" and topic in topics:
            call = lambda: self.store.add_queue(topic, queue_id)
            queues.add((topic, queue_id))
        elif kind == "segment":
            call = lambda: self._put(one, 0)
            segments[one] = 0
        elif kind == "mark" and known is not None and segments[known] == 0:
            call = lambda: self._put(known, STATUS_DELETED)
            segments[known] = STATUS_DELETED
        elif kind == "size" and known is not None and segments[known] == 0:
            call = lambda: self._put(known, 0)
        elif kind == "gone" and known is not None:
            call = lambda: self.store.delete_segment(known)
            segments.pop(known)
        elif kind == "no topic":
            call = lambda: self.store.delete_topic(topic)
            topics.pop(topic, None)
            queues = {key for key in queues if key[0] != topic}
        elif kind == "no queue":
            call = lambda: self.store.delete_queue(topic, queue_id)
            queues.discard((topic, queue_id))
        return (topics, frozenset(queues), segments), call

    def _put(self, one: SegmentId, status: int) -> None:
        size = 0 if status else self.rng.randrange(5_000)
        self.store.put_segment(
            FileSegmentMetadata(
                *(one.path, one.type, one.base_offset),
                size=size,
                status=status,
                create_timestamp_ms=1,
            )
        )

    def _make(self, kind: str, held: Held, states: list[Held]) -> Held:
        """Make one change. Add the possible results to the list `states`."""
        after, call = self._change(kind, held)
        states.append(after)
        try:
            if call is not None:
                call()
        finally:
            after = self._fill_ids(after)
            states[-1] = after
            self._latest = after
        return after

    def _fill_ids(self, held: Held) -> Held:
        topics = dict(held[0])
        for topic, topic_id in held[0].items():
            found = self.store.topic(topic)
            if topic_id < 0 and found is not None:
                assert found.topic_id not in self.used, f"topic id {found.topic_id} comes twice"
                self.given.add(found.topic_id)
                topics[topic] = found.topic_id
        return {topic: number for topic, number in topics.items() if number >= 0}, *held[1:]

    def change(self) -> None:
        kinds = ["topic", "queue", "segment", "segment", "mark", "gone", "no topic", "no queue"]
        kind = self.rng.choice([*kinds, "size", "batch"])
        self.steps.append(kind)
        before = self.look()
        states: list[Held] = [self.held]
        self._latest = self.held
        try:
            if kind == "batch":
                with self.store.batch():
                    for _ in range(self.rng.randrange(1, 5)):
                        self._make(self.rng.choice(kinds[:7]), self._latest, states)
            else:
                self._make(kind, self._latest, states)
        except Unavailable:
            self.maybe += states  # it is in memory, and written with the next change
        except Killed:
            self.maybe += states
            self.is_killed = True
        else:
            if self._latest != before:
                self.maybe = []  # this is on disk, with all that came before
                self.used |= self.given
                self.given = set()
        self.held = self._latest

    def flush(self) -> None:
        self.steps.append("flush")
        try:
            self.store.flush()
        except Unavailable:
            pass
        except Killed:
            self.is_killed = True

    def reload(self, *, is_killed: bool) -> None:
        self.steps.append("kill" if is_killed else "reload")
        operations = self.operations
        operations.rate, operations.end_at = 0, None
        if not is_killed:
            self.store.flush()
            self.maybe = []
        allowed = [self.held, *self.maybe]
        self.store.close()
        self.open()
        found = self.look()
        assert found in allowed
        self.used |= set(found[0].values())
        self.given = set()
        self.held, self.maybe, self.is_killed = found, [], False

    def go(self, steps: int) -> None:
        rng = self.rng
        for _ in range(steps):
            operations, chance = self.operations, rng.random()
            operations.rate = rng.choice([0, 0, 0, 0.1])
            is_last = rng.random() < 0.12
            operations.end_at = operations.count + rng.randrange(1, 14) if is_last else None
            if chance < 0.08:
                self.flush()
            elif chance < 0.16:
                self.reload(is_killed=False)
            else:
                self.change()
            if self.is_killed or rng.random() < 0.05:
                self.reload(is_killed=True)
            assert self.look() == self.held, "memory differs"


def run(root: Path, seed: int, steps: int) -> None:
    one = Run(root, seed)
    try:
        one.go(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(one.steps[-40:])}")
        raise
    finally:
        one.operations.rate, one.operations.end_at = 0, None
        one.store.close()


@pytest.mark.parametrize("seed", range(5))
def test_l01_acknowledged_metadata_is_there_after_any_failure(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 2_000, 50))
def test_l01_acknowledged_metadata_is_there_after_any_failure_for_long(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 50):
        run(tmp_path / str(seed), seed, 120)
