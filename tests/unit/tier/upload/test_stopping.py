"""A stop, or a thread that needs the queue, waits for at most one batch of a long upload round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from tests.kit.tier.flat import (
    KEY,
    T0,
    ListIndex,
    ListSource,
    Tier,
    bodies,
    config,
    existing,
    patch,
)
from tests.kit.waiting import wait_for
from tieredstore.contracts.segment import Buffer, FileSegment, FileSegmentType, WriteResult
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import dispatcher as module
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchStatus


class WatchedProvider(WrapperProvider):
    """An in-memory tier. `before_write` is called before each write to a commit log."""

    def __init__(self) -> None:
        super().__init__(MemoryProvider())
        self.before_write: Callable[[int], object] = lambda _: None
        self.writes = 0

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _WatchedSegment(segment, self)


class _WatchedSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: WatchedProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        if self.id.type is FileSegmentType.COMMIT_LOG:
            self._provider.writes += 1
            self._provider.before_write(self._provider.writes)
        return super().write(position, buffers)


class World:
    """A dispatcher with batches of two messages, a source, a tier, and an index that records
    keys."""

    def __init__(self) -> None:
        settings = config(group_commit_count=2, dispatch_threads=1)
        self.provider = WatchedProvider()
        self.tier = Tier(provider=self.provider)
        self.store = self.tier.store()
        self.source = ListSource()
        self.index = ListIndex()
        self.dispatcher = MessageStoreDispatcher(
            settings, self.source, self.store, self.index, TopicFilter(settings), self.tier.clock
        )

    def offsets(self) -> list[int]:
        return [offset for offset, _ in bodies(existing(self.store, KEY))]


@pytest.fixture
def world() -> World:
    return World()


def test_a_stop_is_seen_behind_the_batch_in_hand(world: World) -> None:
    world.source.put(KEY, 0, 100)

    def stop_at_third(number: int) -> None:
        if number == 3:
            world.dispatcher.stop()

    world.provider.before_write = stop_at_third
    [outcome] = world.dispatcher.scan(force=True)
    assert (outcome.status, outcome.messages, outcome.error) == (DispatchStatus.UPLOADED, 6, None)
    assert outcome.more
    assert (world.provider.writes, world.offsets()) == (3, list(range(6)))
    assert not existing(world.store, KEY).has_uncommitted


def test_a_stop_of_the_loop_waits_for_one_batch(world: World) -> None:
    world.source.put(KEY, 0, 100)
    begun, go_on = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        begun.set()
        assert go_on.wait(60)

    world.provider.before_write = wait
    world.dispatcher.start()
    assert begun.wait(60)
    stopping = threading.Thread(target=world.dispatcher.stop, daemon=True)
    stopping.start()
    wait_for(world.dispatcher._stopping.is_set)
    go_on.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert world.provider.writes == 1
    assert world.offsets() == [0, 1]


def test_the_upload_at_a_stop_ends_with_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStoreDispatcher, "_is_adaptive", True, raising=False)
    monkeypatch.setattr(type(world.dispatcher._upload), "is_adaptive", True)
    world.source.put(KEY, 0, 100)
    world.provider.before_write = lambda _: world.tier.clock.advance(1_000)
    [outcome] = world.dispatcher.drain()
    assert outcome.messages == 2 * (module.FINISH_MS // 1_000 + 1)


def test_keys_that_are_read_back_end_with_a_stop_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.tier.upload.key_upload._UNITS_AT_ONCE", 5)
    world.source.put(KEY, 0, 50, keys=("key",))
    world.index.fail = True
    world.dispatcher.scan(force=True)
    world.index.fail = False
    reads: list[int] = []
    read = FlatMessageFile.read_commit_log_as_found

    def counted(file: FlatMessageFile, position: int, length: int) -> object:
        reads.append(length)
        if len(reads) == 3:
            world.dispatcher.stop()
        return read(file, position, length)

    monkeypatch.setattr(FlatMessageFile, "read_commit_log_as_found", counted)
    world.dispatcher.scan()
    assert len(reads) == 3
    assert world.index.keys() == ["key"] * 15


# Others who need the queue


def test_an_expiry_waits_for_a_batch_and_not_for_a_visit(world: World) -> None:
    world.source.put(KEY, 0, 100)
    world.tier.clock.set(T0 + 10**9)
    seen: list[int] = []

    def expire() -> None:
        file = existing(world.store, KEY)
        file.expire(0)
        seen.append(file.consume_queue_commit_offset)

    expiry = threading.Thread(target=expire, daemon=True)

    def begin(number: int) -> None:
        if number == 5:
            expiry.start()
            wait_for(lambda: bool(world.store._turns._waiting))

    world.provider.before_write = begin
    [outcome] = world.dispatcher.scan(force=True)
    expiry.join(60)
    assert seen[0] < 100
    assert (outcome.messages, world.offsets()) == (100, list(range(100)))


def test_w03_a_topic_that_is_deleted_in_a_visit_waits_for_a_batch_and_stays_gone(
    world: World,
) -> None:
    world.source.put(KEY, 0, 100)
    done: list[int] = []

    def delete() -> None:
        world.store.destroy_topics({KEY.topic})
        done.append(world.provider.writes)

    deletion = threading.Thread(target=delete, daemon=True)

    def begin(number: int) -> None:
        if number == 5:
            deletion.start()
            wait_for(lambda: bool(world.store._turns._waiting))

    world.provider.before_write = begin
    [outcome] = world.dispatcher.scan(force=True)
    deletion.join(60)
    assert done == [5]
    assert (outcome.messages, outcome.error) == (10, None)
    assert world.store.get(*KEY) is None
    assert world.tier.objects() == {}


def test_two_uploads_of_one_queue_take_turns_and_put_each_key_once(world: World) -> None:
    world.source.put(KEY, 0, 40, keys=("key",))
    outcomes = []
    other = threading.Thread(
        target=lambda: outcomes.append(world.dispatcher.dispatch(KEY, force=True)), daemon=True
    )

    def begin(number: int) -> None:
        if number == 5:
            other.start()
            wait_for(lambda: bool(world.store._turns._waiting))

    world.provider.before_write = begin
    outcomes += world.dispatcher.scan(force=True)
    other.join(60)
    assert sum(outcome.messages for outcome in outcomes) == 40
    assert all(outcome.messages for outcome in outcomes)
    assert world.offsets() == list(range(40))
    assert world.index.keys() == ["key"] * 40


def test_a_visit_that_comes_before_a_stored_upload_is_confirmed_puts_its_keys_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of an upload are put into the index once, even if another round begins before the
    upload is confirmed."""
    patch(world.dispatcher, _shares_checks=True)  # small uploads are confirmed together
    world.source.put(KEY, 0, 1, keys=("key",))
    world.dispatcher.scan(force=True)
    wait_for_lock = FlatMessageFile.wait_for_lock
    visits: list[DispatchStatus] = []

    def visited_before(file: FlatMessageFile) -> None:
        if not visits:
            visits.append(DispatchStatus.STORED)
            visits.append(world.dispatcher.dispatch(KEY, force=False).status)
        wait_for_lock(file)

    world.source.put(KEY, 1, 1, keys=("key",))
    world.tier.clock.advance(10**9)
    monkeypatch.setattr(FlatMessageFile, "wait_for_lock", visited_before)
    world.dispatcher.scan()
    assert visits == [DispatchStatus.STORED, DispatchStatus.UPLOADED]
    assert (world.offsets(), world.index.keys()) == ([0, 1], ["key"] * 2)


def test_keys_of_an_upload_that_fails_between_turns_are_put_by_the_next(world: World) -> None:
    world.source.put(KEY, 0, 20, keys=("key",))

    def fail_at_third(number: int) -> None:
        if number == 3:
            raise Unavailable("down")

    world.provider.before_write = fail_at_third
    world.dispatcher.scan(force=True)
    world.dispatcher.scan(force=True)
    assert world.offsets() == list(range(20))
    assert world.index.keys() == ["key"] * 20
