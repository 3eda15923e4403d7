"""Queues that fail to upload do not affect others, and continue once they recover. An unreachable
backend is not retried too often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.kit.tier.flat import BROKER, ListSource, Tier, bodies, config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import Buffer, FileSegment, WriteResult
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import rounds
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

GOOD = QueueKey("Good", 0)


class PickyProvider(WrapperProvider):
    """An in-memory tier that rejects writes or all calls for some paths."""

    def __init__(self) -> None:
        super().__init__(MemoryProvider())
        self.refused: set[str] = set()
        self.is_away = False
        self.asked: list[str] = []
        self.before_refusal: Callable[[], object] = lambda: None

    def refuse(self, *keys: QueueKey) -> None:
        self.refused |= {f"{BROKER}/{key.topic}/{key.queue_id}" for key in keys}

    def ask(self, path: str) -> None:
        self.asked.append(path)
        if self.is_away or path in self.refused:
            self.before_refusal()
            raise Unavailable(f"injected: {path}")

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _PickySegment(segment, self)


class _PickySegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: PickyProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def size(self) -> int:
        if self._provider.is_away:
            self._provider.ask(self.id.path)
        return super().size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._provider.ask(self.id.path)
        return super().write(position, buffers)


class World:
    def __init__(self, **settings: Any) -> None:
        self.provider = PickyProvider()
        self.tier = Tier(provider=self.provider, settings=settings)
        self.store = self.tier.store()
        self.source = ListSource()
        self.dispatcher = MessageStoreDispatcher(
            config(**settings),
            self.source,
            self.store,
            None,
            TopicFilter(config(**settings)),
            self.tier.clock,
        )

    def put(self, *keys: QueueKey) -> None:
        for key in keys:
            self.source.put(key, max(self.source.tables.get(key, {}), default=-1) + 1)

    def scan(self) -> set[QueueKey]:
        """Run a scan. Return the queues whose messages were uploaded."""
        return {o.key for o in self.dispatcher.scan(force=True) if o.messages}

    def offsets(self, key: QueueKey) -> list[int]:
        file = self.store.get(*key)
        return [] if file is None else [offset for offset, _ in bodies(file)]


def queues(topic: str, count: int) -> list[QueueKey]:
    return [QueueKey(topic, number) for number in range(count)]


@pytest.mark.parametrize("threads", [1, 16])
def test_queues_that_fail_starve_no_other(threads: int) -> None:
    world = World(dispatch_threads=threads)
    bad = queues("Bad", 40)
    world.put(*bad, GOOD)
    world.provider.refuse(*bad)
    for _ in range(len(bad) // rounds.GIVE_UP_AFTER + 1):  # until each of them is known
        world.scan()
    assert world.offsets(GOOD) == [0]
    for more in range(1, 4):
        world.put(*bad, GOOD)
        assert world.scan() == {GOOD}
        assert world.offsets(GOOD) == list(range(more + 1))
    assert set(world.dispatcher.failing_queues) == set(bad)


def test_the_queues_of_one_broken_topic_are_not_taken_for_the_backend() -> None:
    world = World(dispatch_threads=1)
    bad, well = queues("Bad", 200), queues("Well", 100)
    world.put(*bad, *well)
    world.provider.refuse(*bad)
    assert world.scan() == set(well)
    assert not set(world.dispatcher.failing_queues) - set(bad)


def test_of_queues_that_failed_those_that_work_again_need_not_wait_for_the_others() -> None:
    world = World(dispatch_threads=1)
    bad = queues("Bad", 60)
    world.put(*bad, GOOD)
    world.provider.refuse(*bad)
    for _ in range(4):
        world.scan()
    assert set(world.dispatcher.failing_queues) == set(bad)
    mended = set(bad[5:50:9])
    world.provider.refused -= {f"{BROKER}/Bad/{key.queue_id}" for key in mended}
    world.put(GOOD)
    assert world.scan() == {GOOD, *mended}


def test_queues_that_fail_slowly_take_turns_within_their_time() -> None:
    """Queues with slow failures take turns, so that the next scan starts on time."""
    world = World(dispatch_threads=1)
    bad = queues("Bad", 24)
    world.put(*bad, GOOD)
    world.provider.refuse(*bad)
    for _ in range(3):
        world.scan()
    assert set(world.dispatcher.failing_queues) == set(bad)
    world.provider.before_refusal = lambda: world.tier.clock.advance(1_000)
    tried: list[str] = []
    for _ in range(4):
        world.put(GOOD)
        world.provider.asked.clear()
        assert world.scan() == {GOOD}
        asked = [path for path in world.provider.asked if "/Bad/" in path]
        assert len(asked) == rounds.FAILING_MS // 1_000 + 1
        tried += asked
    assert len(set(tried)) == len(bad)  # the one that waits longest is the next


def test_a_backend_that_is_away_is_left_in_peace_although_all_have_failed_before() -> None:
    world = World(dispatch_threads=1)
    every = queues("T", 100)
    world.put(*every)
    world.scan()
    world.provider.is_away = True
    world.put(*every)
    for _ in range(10):
        world.provider.asked.clear()
        assert world.scan() == set()
        assert len(world.provider.asked) == rounds.GIVE_UP_AFTER
    world.provider.is_away = False
    assert world.scan() == set(every)
    assert world.dispatcher.failing_queues == {}


def test_new_queues_do_not_all_ask_a_backend_that_is_away() -> None:
    world = World(dispatch_threads=1)
    known, new = queues("Known", 3), queues("New", 100)
    world.put(*known)
    world.scan()
    world.provider.is_away = True
    world.put(*new, *known)
    assert world.scan() == set()
    assert len({path for path in world.provider.asked if "/New/" in path}) == rounds.GIVE_UP_AFTER
    assert {path for path in world.provider.asked if "/Known/" in path}  # later ones all the same
    world.provider.is_away = False
    assert world.scan() == {*known, *new}


def test_new_queues_are_not_announced_behind_a_stop() -> None:
    world = World()
    asked: list[QueueKey] = []
    queue_range = world.source.queue_range

    def stop_at_third(key: QueueKey) -> Any:
        asked.append(key)
        if asked.count(key) == 2 and key.queue_id == 2:  # the first time, it is asked for work
            world.dispatcher.stop()
        return queue_range(key)

    world.put(*queues("New", 50))
    world.source.queue_range = stop_at_third  # type: ignore[method-assign]
    assert world.dispatcher.scan(force=True) == []
    assert len(list(world.tier.metadata.queues("New"))) == 3
