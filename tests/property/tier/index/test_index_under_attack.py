"""The index of a tier meets equal hashes, few slots, failing requests, kills, take-overs, expiry
and deleted topics (faults W01 and W04). A query finds each unexpired key once, and no key of
another topic."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tests.kit.tier.flat import TableMetadata, config
from tests.kit.tier.index import put_keys
from tieredstore.clock import ManualClock
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.reading import run as run_reading

T0 = 1_700_000_000_000
SAME_HASH = (("Aa", "BB"), ("AaAa", "BBBB", "AaBB"))
"""Groups of strings that have the same hash in Java."""
KEYS = (*SAME_HASH[0], *SAME_HASH[1], "k1", "k2")
FAULTS = (ObjectFault.FAIL, ObjectFault.FAIL, ObjectFault.LOSE_REPLY)


class Row(NamedTuple):
    key: str
    offset: int
    size: int
    time_ms: int


class Run:
    """One run of the test. `rows` has the messages that were put and not deleted, by topic id and
    queue. `end` is the end of the commit log."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.state = root / "0"
        self.clock = ManualClock(T0)
        self.metadata = TableMetadata()
        self.base = MemoryObjectClient(now_ms=self.clock.now_ms)
        self.settings = {
            "index_file_max_hash_slot_num": self.rng.choice([1, 3, 11]),
            "index_file_max_index_num": self.rng.choice([4, 9, 40]),
        }
        self.rows: dict[tuple[int, int], list[Row]] = {}
        self.end: dict[tuple[int, int], int] = {}
        self.rate = 0.0
        self.copies = self.deleted = self.expired_ms = 0
        self.steps: list[str] = []
        self.open()

    def open(self) -> None:
        client = FaultyObjectClient(
            beside=self.base, now_ms=self.clock.now_ms, fault_of=self._choose_fault
        )
        provider = chunk_provider(client, read_threads=1)
        self.epoch = provider.acquire_writer("broker-a", take_over=True)
        self.index = IndexStoreService(
            config(**self.settings),
            provider,
            self.metadata,
            self.state,
            self.clock,
            check_writer=self.epoch.check,
            confirm_writer=self.epoch.confirm,
        )
        self.index.recover()
        for key, rows in self.rows.items():  # as the dispatcher does behind a start
            mark = self.index.find_indexed_end(*key) or 0
            self._put_rows(key, [row for row in rows if row.offset >= mark])

    def _choose_fault(self, operation: str, key: str) -> ObjectFault | None:
        del operation, key
        is_wrong = self.rate and self.rng.random() < self.rate
        return self.rng.choice(FAULTS) if is_wrong else None

    def _put_rows(self, key: tuple[int, int], rows: list[Row]) -> None:
        if rows:
            put_keys(
                self.index,
                *(key[0], f"T{key[0]}", key[1], [row.key for row in rows]),
                np.array([row.offset for row in rows]),
                np.array([row.size for row in rows], dtype=np.int32),
                np.array([row.time_ms for row in rows]),
            )

    # Steps

    def put(self) -> None:
        key = (self.rng.randrange(3), self.rng.randrange(2))
        at = self.end.get(key, 0)
        rows = []
        for _ in range(self.rng.choice([1, 2, 5, 15])):
            self.clock.advance(self.rng.choice([0, 1, 1_500, 100_000]))
            size = self.rng.randrange(1, 200)
            names = self.rng.sample(KEYS, self.rng.choice([1, 1, 2]))
            rows += [Row(name, at, size, self.clock.now_ms()) for name in names]
            at += size
        self._put_rows(key, rows)
        self.end[key] = at
        self.rows.setdefault(key, []).extend(rows)

    def _with_faults(self, rates: tuple[float, ...], act: Callable[[], object]) -> None:
        self.rate = self.rng.choice(rates)
        with suppress(Unavailable):
            act()
        self.rate = 0

    def upload(self) -> None:
        is_forced = self.rng.random() < 0.6
        self._with_faults((0, 0, 0.2), lambda: self.index.seal_and_upload(force=is_forced))

    def expire(self) -> None:
        before_ms = self.clock.now_ms() - self.rng.choice([0, 50_000, 500_000])
        self._with_faults((0, 0.2), lambda: self.index.expire(before_ms))
        self.expired_ms = max(self.expired_ms, before_ms)

    def forget(self) -> None:
        """Delete a topic. Later messages of the topic get commit log offsets that no earlier
        message had."""
        topic_id = self.rng.randrange(3)
        self.deleted += 1
        for key in ((topic_id, 0), (topic_id, 1)):
            self.index.forget(*key)
            self.rows.pop(key, None)
            self.end[key] = self.rng.randrange(10**6, 10**7) + self.deleted * 10**7
            self.index.mark_indexed(*key, self.end[key])

    def stop(self) -> None:
        self.index.stop(force=self.rng.random() < 0.5)
        self.epoch.release()
        self.open()

    def kill(self) -> None:
        if self.rng.random() < 0.5:
            self.index.checkpoint()
        self.copies += 1
        copy = self.root / str(self.copies)
        shutil.copytree(self.state, copy)
        self.state = copy
        self.open()

    def take_over(self) -> None:
        former = self.index
        self.kill()
        with suppress(Fenced, Unavailable, Invalid):
            assert not former.seal_and_upload(force=True), "a former writer has uploaded"

    # What holds after each step

    def check(self) -> None:
        key, topic_id = self.rng.choice(KEYS), self.rng.randrange(3)
        begin_ms, end_ms = 0, 2**62
        if self.rng.random() < 0.5:
            now_ms = self.clock.now_ms()
            begin_ms, end_ms = sorted(now_ms - self.rng.randrange(10**6) for _ in range(2))
        query = self.index.query(f"T{topic_id}", key, 10**6, begin_ms, end_ms, topic_id=topic_id)
        found = Counter((item.queue_id, item.offset) for item in run_reading(query))
        rows = [
            (queue_id, row)
            for (topic, queue_id), of_queue in self.rows.items()
            if topic == topic_id
            for row in of_queue
        ]
        wanted = {
            (queue_id, row.offset)
            for queue_id, row in rows
            if row.key == key
            and begin_ms <= row.time_ms <= end_ms
            and row.time_ms >= self.expired_ms
        }
        assert wanted <= found.keys(), (
            f"{key} of topic {topic_id} is not found: {self.index.problems}"
        )
        same = next((names for names in SAME_HASH if key in names), (key,))
        places = Counter((queue_id, row.offset) for queue_id, row in rows if row.key in same)
        for place, count in found.items():
            if place in places:  # others are of a former life, whose messages are not there
                assert count <= places[place], f"{key}: {place} is found {count} times"

    def go(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.put, 10),
            (self.upload, 5),
            (self.expire, 1),
            (self.forget, 1),
            (self.stop, 2),
            (self.kill, 3),
            (self.take_over, 1),
        ]
        choice = [action for action, weight in actions for _ in range(weight)]
        for _ in range(steps):
            action = self.rng.choice(choice)
            self.steps.append(action.__name__)
            action()
            for _ in range(3):
                self.check()


def run(root: Path, seed: int, steps: int) -> None:
    one = Run(root, seed)
    try:
        one.go(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(one.steps)}")
        raise
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("seed", range(3))
def test_w04_keys_are_found_whatever_happens_to_the_index(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "index", seed, 50)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_400, 20))
def test_w04_keys_are_found_whatever_happens_to_the_index_for_long(
    tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 20):
        run(tmp_path / str(seed), seed, 60)
