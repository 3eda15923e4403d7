"""Uploads, reads and stops never wait for a backend's slow or failing deletions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kit.tier.flat import (
    BROKER,
    T0,
    ListSource,
    Tier,
    bodies,
    commit_log_id,
    config,
    consume_queue_id,
    existing,
    fill,
    record,
)
from tests.kit.tier.writing import become_writer
from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegment, SegmentId
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

KEY = QueueKey("TopicA", 0)
OTHER = QueueKey("TopicB", 0)
HOUR_MS = 3_600_000
SIZE = len(record(0)[0])
SECONDS = 20
"""Time limit of calls that must not block, seconds."""


class SlowProvider(WrapperProvider):
    """An in-memory tier. `before_delete` is called before each deletion."""

    def __init__(self) -> None:
        super().__init__(MemoryProvider())
        self.before_delete: Callable[[SegmentId], object] = lambda _: None
        self.deleted: list[SegmentId] = []

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _SlowSegment(segment, self)


class _SlowSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: SlowProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def delete(self) -> None:
        self._provider.before_delete(self.id)
        super().delete()
        self._provider.deleted.append(self.id)


class World:
    """A tier of small segments with a dispatcher and a retention of ten hours."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {
            "commit_log_max_size_bytes": 2 * SIZE,
            "consume_queue_max_size_bytes": 40,
            "file_reserved_time_hours": 10,
        }
        self.provider = SlowProvider()
        self.tier = Tier(provider=self.provider, settings=settings)
        self.store = self.tier.store()
        self.source = ListSource()
        self.expiry = TierExpiry(config(**settings), self.store, self.tier.clock)
        self.dispatcher = MessageStoreDispatcher(
            config(**settings),
            self.source,
            self.store,
            None,
            TopicFilter(config(**settings)),
            self.tier.clock,
        )

    def upload(self, key: QueueKey = KEY, count: int = 6) -> None:
        table = self.source.tables.get(key, {})
        self.source.put(key, max(table, default=-1) + 1, count)
        self.dispatcher.scan(force=True)

    def leave_over(self, count: int, topic: str = "Gone") -> list[SegmentId]:
        """Create segments of a deleted topic, marked as deleted in the metadata."""
        left = [commit_log_id(0, f"{BROKER}/{topic}/{n}") for n in range(count)]
        for one in left:
            self.provider.open(one).write(0, [b"old"])
            self.tier.metadata.put_segment(
                FileSegmentMetadata(one.path, one.type, one.base_offset, status=STATUS_DELETED)
            )
        return left

    @contextmanager
    def deleting(self, work: Callable[[], object]) -> Iterator[None]:
        """Run `work` in a thread. The `with` block runs during the first deletion of `work`."""
        begun, go_on = threading.Event(), threading.Event()

        def wait(_: SegmentId) -> None:
            begun.set()
            assert go_on.wait(60)

        self.provider.before_delete = wait
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            assert begun.wait(SECONDS)
            yield
        finally:
            go_on.set()
            thread.join(60)
            self.provider.before_delete = lambda _: None


def ends_soon(work: Callable[[], object]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


@pytest.fixture
def world() -> World:
    return World()


def test_o12_leftovers_that_go_slowly_hold_up_no_upload_and_no_read(world: World) -> None:
    world.upload()
    world.leave_over(3)
    with world.deleting(world.store.sweep_deleted):
        assert ends_soon(lambda: world.upload(count=2))
        assert ends_soon(lambda: world.upload(OTHER, count=1))  # a queue that is new
        assert [q for q, _ in bodies(existing(world.store, KEY))] == list(range(8))
        assert [q for q, _ in bodies(existing(world.store, OTHER))] == [0]
    assert world.store.sweep_deleted() == 0


def test_o12_an_expiry_that_goes_slowly_holds_up_not_even_its_own_queue(world: World) -> None:
    world.upload()
    world.tier.clock.advance_to(T0 + 10 * HOUR_MS + 4)
    with world.deleting(world.expiry.run_once):
        assert ends_soon(lambda: world.upload(count=3))
        assert [q for q, _ in bodies(existing(world.store, KEY))] == list(range(4, 9))
    assert len(world.provider.deleted) == 4
    assert world.store.sweep_deleted() == 0
    assert [q for q, _ in bodies(existing(world.tier.store(), KEY))] == list(range(4, 9))


def test_o12_a_topic_that_goes_slowly_holds_up_no_other(world: World) -> None:
    world.upload()
    world.upload(OTHER)
    with world.deleting(lambda: world.store.destroy_topics({"TopicA"})):
        assert world.store.get(*KEY) is None
        assert ends_soon(lambda: world.dispatcher.dispatch(KEY, force=True))
        assert ends_soon(lambda: world.upload(OTHER, count=2))
        assert [q for q, _ in bodies(existing(world.store, OTHER))] == list(range(8))
    assert {one.path for one in world.tier.objects()} == {f"{BROKER}/TopicB/0"}


def test_w03_a_name_whose_leftover_is_being_deleted_is_not_used_until_it_has_gone(
    world: World,
) -> None:
    world.leave_over(1, topic="TopicA")
    with world.deleting(world.store.sweep_deleted):
        with pytest.raises(Busy, match="is being deleted"):
            world.store.get_or_create(*KEY).init_offset(0)
        world.upload(count=2)  # leaves the queue alone
        assert not existing(world.store, KEY).is_initialised
    world.upload(count=1)
    assert [q for q, _ in bodies(existing(world.store, KEY))] == [0, 1, 2]
    assert world.store.sweep_deleted() == 0
    assert [q for q, _ in bodies(existing(world.tier.store(), KEY))] == [0, 1, 2]


def test_w03_an_expiry_that_was_slow_deletes_nothing_of_the_topic_made_again(
    world: World,
) -> None:
    """A slow expiry does not delete segments of a recreated topic."""
    world.upload()
    world.tier.clock.advance_to(T0 + 1_000 * HOUR_MS)
    file = existing(world.store, KEY)
    victims = [consume_queue_id(0), commit_log_id(0)]
    taken = [*file.consume_queue.take_expired(T0 + 2), *file.commit_log.take_expired(T0 + 2)]
    assert [item.id for item in taken] == victims
    world.store.destroy_topics({"TopicA"})
    assert world.store.sweep_deleted() == 0  # the taken messages went with it
    world.source.tables.clear()
    world.upload(count=2)
    there = set(world.tier.objects())
    assert consume_queue_id(0) in there
    assert commit_log_id(0) not in there
    file._remove(taken)
    assert set(world.tier.objects()) == there
    assert [q for q, _ in bodies(existing(world.tier.store(), KEY))] == [0, 1]


def test_two_who_delete_a_topic_at_once_leave_its_name_when_both_are_done(world: World) -> None:
    world.upload()
    with world.deleting(lambda: world.store.destroy_topics({"TopicA"})):
        world.provider.before_delete = lambda _: None
        assert ends_soon(lambda: world.store.destroy_topics({"TopicA"}))
        with pytest.raises(Busy):
            world.store.get_or_create(*KEY)
    world.source.tables.clear()
    world.upload(count=1)
    assert [q for q, _ in bodies(existing(world.store, KEY))] == [0]
    assert world.tier.metadata.topic("TopicA") is not None


def test_t34_a_deletion_that_is_in_hand_is_not_begun_once_more(world: World) -> None:
    world.upload()
    with world.deleting(lambda: world.store.destroy_topics({KEY.topic})):
        for again in (world.store.finish_deletions, world.store.sweep_deleted):
            assert ends_soon(again)
            assert world.tier.metadata.topic(KEY.topic) is not None
            assert world.store.is_leaving(KEY.topic)
    assert world.tier.metadata.topic(KEY.topic) is None
    assert not world.store.is_leaving(KEY.topic)
    told: list[object] = []
    world.store.on_destroyed = lambda *found: told.append(found)
    world.upload()
    world.store.finish_deletions()
    assert told == []
    assert existing(world.store, KEY).is_initialised


@pytest.mark.parametrize("error", [Corrupt("a folder is in its place"), TieredStoreError("odd")])
def test_one_that_cannot_be_deleted_keeps_no_other(world: World, error: TieredStoreError) -> None:
    left = world.leave_over(40)

    def refuse(id: SegmentId) -> None:
        if id == left[3]:
            raise error

    world.provider.before_delete = refuse
    assert world.store.sweep_deleted() == 1
    assert list(world.tier.objects()) == [left[3]]
    assert [entry.id for entry in world.tier.metadata.segments()] == [left[3]]


def test_a_writer_that_lost_its_right_ends_its_deletions(world: World) -> None:
    world.leave_over(3)

    def refuse(_: SegmentId) -> None:
        raise Fenced("another writer")

    world.provider.before_delete = refuse
    with pytest.raises(Fenced):
        world.store.sweep_deleted()
    assert len(list(world.tier.metadata.segments())) == 3


def test_a_stop_is_seen_between_two_deletions(world: World) -> None:
    world.leave_over(50)
    with world.deleting(world.expiry.start):
        stopping = threading.Thread(target=world.expiry.stop, daemon=True)
        stopping.start()
        wait_for(lambda: world.expiry._loop.is_stopping)
    stopping.join(SECONDS)
    assert not stopping.is_alive()
    assert len(world.provider.deleted) == 1
    assert len(list(world.tier.metadata.segments())) == 49  # the rest stays announced


def test_leftovers_hold_up_a_start_for_so_long_and_expiry_goes_on_with_them() -> None:
    world = World()
    world.leave_over(50)
    clock = ManualClock(T0)
    world.provider.before_delete = lambda _: clock.advance(500)  # a throttled backend
    store = FlatFileStore(config(), world.provider, world.tier.metadata, clock)
    become_writer(store)
    assert len(world.provider.deleted) == 10
    assert store.sweep_deleted() == 0
    assert world.tier.objects() == {}


def test_a_file_that_is_filled_while_another_is_deleted_stays_whole(world: World) -> None:
    """A queue stays complete if it is filled while another queue is deleted."""
    world.leave_over(2)
    with world.deleting(world.store.sweep_deleted):
        made: list[Any] = []
        assert ends_soon(lambda: made.append(world.store.get_or_create("New", 7)))
        made[0].init_offset(0)
        fill(made[0], 0, 3, topic="New", queue_id=7)
    assert [q for q, _ in bodies(existing(world.store, QueueKey("New", 7)))] == [0, 1, 2]
