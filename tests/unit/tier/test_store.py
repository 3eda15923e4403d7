"""Tests of a store with a local store and a real tier: routing of gets, merged results, and life
cycle."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from tests.kit.tier.flat import existing, patch
from tests.kit.tier.next_store import InMemoryStore
from tieredstore.clock import SystemClock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    GetRequest,
    MessageStore,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metrics import Histogram
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.service_thread import ServiceState
from tieredstore.tier.fetch import block_fetcher
from tieredstore.tier.policy.topic_filter import EXCLUDED_METRIC
from tieredstore.tier.read_plan import ReadSource, plan_read
from tieredstore.tier.reading import run
from tieredstore.tier.reads import FALLBACKS, MESSAGES_OUT
from tieredstore.tier.store import TieredMessageStore

BROKER, TOPIC = "broker-a", "TopicA"
KEY = QueueKey(TOPIC, 0)
BEGIN_MS = 1_700_000_000_000
FAR_MS = 2**62


class World:
    """A local store and a tier, as in a broker. `restart` reopens them on the same files."""

    def __init__(
        self, path: Path, *, provider: SegmentProvider | None = None, **config: Any
    ) -> None:
        self.path = path
        self.next = InMemoryStore()
        self.provider = provider
        self.config = {
            "broker_name": BROKER,
            "broker_cluster_name": "C",
            "index_file_max_hash_slot_num": 100,
            "index_file_max_index_num": 1000,
            "read_ahead_cache_size_bytes": 8 << 20,
            **config,
        }
        self.open()

    def metadata(self) -> DefaultMetadataStore:
        return DefaultMetadataStore(self.path / "config" / "tieredStoreMetadata.json", BROKER)

    def open(self) -> TieredMessageStore:
        self.store = TieredMessageStore(
            self.next,
            StoreConfig(**self.config),
            self.provider or PosixProvider(self.path / "tier", "C", fsync=False),
            self.metadata(),
            self.path,
            SystemClock(),
        )
        self.store.load()
        return self.store

    def restart(self, **config: Any) -> TieredMessageStore:
        self.store.shutdown()
        self.config.update(config)
        return self.open()

    def put(
        self,
        count: int,
        *,
        topic: str = TOPIC,
        queue_id: int = 0,
        step_ms: int = 10,
        key: str = "k",
    ) -> None:
        for _ in range(count):
            offset = len(self.next.queues_[QueueKey(topic, queue_id)])
            self.next.now_ms = BEGIN_MS + offset * step_ms
            message = Message.create(
                topic,
                b"body %d" % offset,
                queue_id=queue_id,
                tags="TagA",
                keys=[f"{key}{offset}", "all"],
                uniq_key=f"u{queue_id}-{offset}",
            )
            assert self.store.put_message(message).ok

    def guard(self, key: QueueKey) -> int | None:
        """Return the retention guard: the lowest queue offset that the tier needs from the local
        store."""
        assert self.next.guard is not None
        return self.next.guard(key)

    def upload(self) -> None:
        for outcome in self.store.dispatcher.scan(force=True):
            assert outcome.error is None, outcome

    def get(
        self, offset: int, count: int = 32, topic: str = TOPIC, queue_id: int = 0
    ) -> GetMessageResult:
        return self.store.get_message("g", topic, queue_id, offset, count)


def bodies(result: GetMessageResult) -> list[str]:
    return [bytes(message.body).decode() for message in result.messages]


def offsets(messages: Iterable[StoredMessage]) -> list[tuple[int, int]]:
    return [(message.queue_id, message.queue_offset) for message in messages]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**config: Any) -> World:
        path = tmp_path / str(len(worlds))
        path.mkdir()
        worlds.append(World(path, **config))
        return worlds[-1]

    yield make
    for world in worlds:
        world.store.shutdown()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A local store and a tier with 120 messages. The first 100 are in the tier, and the first 60
    are no longer in the local store."""
    world = make_world()
    world.put(100)
    world.upload()
    world.put(20)
    world.next.low[KEY] = 60
    return world


def test_it_is_a_message_store(world: World) -> None:
    assert isinstance(world.store, MessageStore)
    assert world.store.dispatch_source is world.next
    found = world.store.look_message_by_offset(7)
    assert found is not None
    assert found.queue_offset == 7


def test_history_is_read_as_if_the_next_store_still_had_it(world: World) -> None:
    offset, seen = 0, []
    while True:
        result = world.get(offset)
        if result.status is not GetMessageStatus.FOUND:
            break
        seen += bodies(result)
        offset = result.next_begin_offset
    assert seen == [f"body {n}" for n in range(120)]
    assert result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    # What both have is read locally.
    assert world.next.calls.count("get") == 3
    assert world.store.metrics.value(MESSAGES_OUT, topic=TOPIC, group="g") == 64


def test_what_leaves_the_next_store_while_it_is_read_is_read_from_the_tier(world: World) -> None:
    def clean() -> None:
        world.next.low[KEY] = 90

    def look_before_it(read: Callable[[], Any]) -> Any:
        world.next.low[KEY] = 60
        world.next.before_read = clean
        return read()

    result = look_before_it(lambda: world.get(70, 8))
    assert result.status is GetMessageStatus.FOUND
    assert bodies(result) == [f"body {n}" for n in range(70, 78)]
    assert result.next_begin_offset == 78
    assert bodies(look_before_it(lambda: asyncio.run(get_async(world, 70)))) == ["body 70"]
    assert (
        look_before_it(lambda: world.store.get_message_store_timestamp(TOPIC, 0, 70))
        == BEGIN_MS + 700
    )
    found = look_before_it(lambda: world.store.query_message(TOPIC, "k70", 8, 0, FAR_MS))
    assert offsets(found) == [(0, 70)]


async def get_async(world: World, offset: int) -> GetMessageResult:
    return await world.store.get_async(GetRequest(TOPIC, 0, offset, 1))


def test_async_gets_take_the_same_ways(world: World) -> None:
    async def read_all() -> list[str]:
        found = [await world.store.get_message_async("g", TOPIC, 0, n, 8) for n in (0, 40, 60, 110)]
        return [bodies(result)[0] for result in found]

    assert asyncio.run(read_all()) == ["body 0", "body 40", "body 60", "body 110"]


def test_minimum_is_that_of_both_and_maximum_that_of_what_was_read(world: World) -> None:
    result = world.get(10)
    assert (result.min_offset, result.max_offset) == (0, 100)
    world.next.low[KEY] = 0
    world.restart(storage_level=StorageLevel.FORCE)
    tier = existing(world.store.flat_files, KEY)
    tier.commit_log.roll()
    tier.consume_queue.roll()
    world.upload()
    tier.expire(BEGIN_MS + 995)
    assert tier.consume_queue_min_offset == 100
    result = world.get(100)
    assert (result.status, result.next_begin_offset, result.min_offset) == (
        GetMessageStatus.FOUND,
        120,
        0,
    )


def test_defect_d11_the_local_unknown_never_wins(world: World) -> None:
    assert world.store.get_min_offset_in_queue(TOPIC, 0) == 0
    world.next.queues_.clear()
    assert world.next.get_min_offset_in_queue(TOPIC, 0) == -1
    assert world.store.get_min_offset_in_queue(TOPIC, 0) == 0
    assert world.store.get_max_offset_in_queue(TOPIC, 0) == 100
    assert world.store.get_min_offset_in_queue("Unknown", 0) == -1
    assert world.store.get_max_offset_in_queue("Unknown", 0) == -1


def test_an_empty_local_queue_does_not_hide_where_the_tier_begins(world: World) -> None:
    tier = existing(world.store.flat_files, KEY)
    tier.commit_log.roll()
    tier.consume_queue.roll()
    world.upload()
    tier.expire(BEGIN_MS + 995)
    world.next.queues_[KEY].clear()
    world.next.low[KEY] = 0
    assert world.store.get_min_offset_in_queue(TOPIC, 0) == 100
    assert world.store.get_max_offset_in_queue(TOPIC, 0) == 120


def test_maximum_is_the_one_that_assigns_offsets(world: World) -> None:
    assert world.store.get_max_offset_in_queue(TOPIC, 0) == 120


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [
        (-5, 0, 0),
        (0, 0, 0),
        (5, 1, 0),
        (595, 60, 59),
        (600, 60, 60),
        (995, 100, 99),
        (1005, 101, 100),
        (1190, 119, 119),
        (5000, 120, 119),
    ],
)
def test_defect_d27_time_search_goes_over_both_stores(
    world: World, time: int, lower: int, upper: int
) -> None:
    search = world.store.get_offset_in_queue_by_time
    assert search(TOPIC, 0, BEGIN_MS + time) == lower
    assert search(TOPIC, 0, BEGIN_MS + time, BoundaryType.UPPER) == upper


def test_times_of_messages_come_from_whoever_has_them(world: World) -> None:
    store = world.store
    assert store.get_message_store_timestamp(TOPIC, 0, 5) == BEGIN_MS + 50
    assert store.get_message_store_timestamp(TOPIC, 0, 110) == BEGIN_MS + 1100
    assert store.get_message_store_timestamp(TOPIC, 0, 120) == -1
    assert store.get_earliest_message_time(TOPIC, 0) == BEGIN_MS
    assert store.get_earliest_message_time() == BEGIN_MS
    assert store.get_earliest_message_time("Unknown", 0) == -1
    assert world.next.get_earliest_message_time(TOPIC, 0) == BEGIN_MS + 600


def test_queries_give_each_message_once(world: World) -> None:
    found = world.store.query_message(TOPIC, "all", 1000, 0, FAR_MS)
    assert offsets(found) == [(0, n) for n in range(120)]
    assert len(world.store.query_message(TOPIC, "all", 10, 0, FAR_MS)) == 10
    assert offsets(world.store.query_message(TOPIC, "k7", 10, 0, FAR_MS)) == [(0, 7)]
    assert offsets(world.store.query_message(TOPIC, "u0-110", 10, 0, FAR_MS)) == [(0, 110)]


def test_defect_d23_the_end_of_a_query_is_respected(world: World) -> None:
    query = world.store.query_message
    assert offsets(query(TOPIC, "all", 99, BEGIN_MS + 10, BEGIN_MS + 35)) == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]
    assert offsets(query(TOPIC, "all", 99, BEGIN_MS + 585, BEGIN_MS + 610)) == [
        (0, 59),
        (0, 60),
        (0, 61),
    ]
    world.next.calls.clear()
    query(TOPIC, "all", 99, BEGIN_MS, BEGIN_MS + 100)
    assert "query" not in world.next.calls


def test_a_failing_tier_falls_back_to_what_the_next_store_has(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(100)
    world.upload()
    world.next.low[KEY] = 50

    def refuse(*_: object) -> NoReturn:
        raise Unavailable("the backend is down")

    monkeypatch.setattr("tieredstore.providers.posix.provider.PosixFileSegment.read", refuse)
    assert bodies(world.get(60, 2)) == ["body 60", "body 61"]
    labels = {"operation": "get_message", "topic": TOPIC, "group": "g"}
    assert world.store.metrics.value(FALLBACKS, **labels) == 1
    result = world.get(10, 2)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 10)
    assert world.get(0, topic="Unknown").status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_failing_tier_leaves_queries_what_the_next_store_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise Unavailable("the backend is down")

    segment = "tieredstore.providers.posix.provider.PosixFileSegment"
    monkeypatch.setattr(f"{segment}.read", refuse)
    monkeypatch.setattr(f"{segment}.read_nowait", lambda *_: None)
    found = world.store.query_message(TOPIC, "all", 1000, 0, FAR_MS)
    assert offsets(found) == [(0, n) for n in range(60, 120)]
    with pytest.raises(Unavailable):
        world.store.query_message(TOPIC, "k7", 1000, 0, FAR_MS)


def test_defect_disable_means_off_everywhere(world: World) -> None:
    store = world.restart(storage_level=StorageLevel.DISABLE)
    assert world.get(0).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert store.get_min_offset_in_queue(TOPIC, 0) == 60
    assert store.get_earliest_message_time(TOPIC, 0) == BEGIN_MS + 600
    assert store.get_earliest_message_time() == BEGIN_MS + 600
    assert store.get_offset_in_queue_by_time(TOPIC, 0, BEGIN_MS) == 60
    assert store.get_message_store_timestamp(TOPIC, 0, 5) == -1
    assert store.query_message(TOPIC, "k7", 10, 0, FAR_MS) == []
    store.start()
    assert store.dispatcher.scan(force=True) == []
    assert world.next.guard is None


@pytest.mark.parametrize(("low", "following"), [(0, 10), (30, 30), (90, 50)])
def test_force_sends_nobody_back_who_begins_too_early(
    make_world: Callable[..., World], low: int, following: int
) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(120)
    world.next.low[KEY] = low
    result = GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 50, 50, 120)
    run(world.store._merge(GetRequest(TOPIC, 0, 10), result))
    assert result.next_begin_offset == following


def test_force_reads_from_the_tier_all_that_it_has(make_world: Callable[..., World]) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(100)
    world.upload()
    assert bodies(world.get(0)) == [f"body {n}" for n in range(32)]
    assert bodies(world.get(99)) == ["body 99"]
    assert world.get(100).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert world.store.get_offset_in_queue_by_time(TOPIC, 0, BEGIN_MS + 500) == 50
    assert offsets(world.store.query_message(TOPIC, "all", 10, 0, FAR_MS)) == [
        (0, n) for n in range(90, 100)
    ]
    assert world.next.calls == ["load"]


def test_force_reads_from_the_next_store_what_the_tier_does_not_have(
    make_world: Callable[..., World],
) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(10)
    assert bodies(world.get(0)) == [f"body {n}" for n in range(10)]  # nothing was uploaded yet
    world.upload()
    world.put(20)
    assert bodies(world.get(0)) == [f"body {n}" for n in range(10)]
    assert bodies(world.get(10)) == [f"body {n}" for n in range(10, 30)]
    assert asyncio.run(world.store.get_message_async("g", TOPIC, 0, 10, 1)).next_begin_offset == 11
    assert world.get(30).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert world.get(31).next_begin_offset == 30
    search = world.store.get_offset_in_queue_by_time
    assert [search(TOPIC, 0, BEGIN_MS + 10 * n) for n in (5, 20, 99)] == [5, 20, 30]
    assert world.store.get_message_store_timestamp(TOPIC, 0, 20) == BEGIN_MS + 200
    assert offsets(world.store.query_message(TOPIC, "all", 99, 0, FAR_MS)) == [
        (0, n) for n in range(30)
    ]
    assert offsets(world.store.query_message(TOPIC, "k25", 10, 0, FAR_MS)) == [(0, 25)]


@pytest.mark.parametrize("begin", [0, 6])
def test_a_get_from_the_tier_ends_before_what_only_the_next_store_has(
    make_world: Callable[..., World], begin: int
) -> None:
    """A get from the tier returns no messages after those that only the local store has."""
    world = make_world()
    world.put(10)
    world.upload()
    world.put(20)
    existing(world.store.flat_files, KEY).skip_to(30)
    world.put(10)
    world.upload()
    world.next.low[KEY] = 20
    for _ in range(2):
        offset, seen = begin, []
        while (result := world.get(offset)).next_begin_offset > offset:
            seen += bodies(result)
            offset = result.next_begin_offset
        assert seen == [f"body {n}" for n in (*range(begin, 10), *range(20, 40))]
    search = world.store.get_offset_in_queue_by_time
    assert search(TOPIC, 0, BEGIN_MS + 150) == 20
    assert search(TOPIC, 0, BEGIN_MS + 150, BoundaryType.UPPER) == 9
    assert search(TOPIC, 0, BEGIN_MS + 255, BoundaryType.UPPER) == 25


def test_force_reads_from_the_next_store_what_has_left_the_tier(
    make_world: Callable[..., World],
) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(100)
    world.upload()
    existing(world.store.flat_files, KEY).expire(BEGIN_MS + 995)
    world.put(10)
    world.upload()
    assert bodies(world.get(0, 2)) == ["body 0", "body 1"]
    assert bodies(world.get(100, 2)) == ["body 100", "body 101"]


def test_force_leaves_readers_where_the_tier_ends_when_the_next_store_ends_before(
    make_world: Callable[..., World],
) -> None:
    """With the storage level FORCE, a reader at the end of the tier stays there even if the local
    store ends earlier."""
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(100)
    world.upload()
    world.next.queues_[KEY].clear()
    result = world.get(100)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 100)


def test_not_in_mem_reads_cold_messages_from_the_tier(make_world: Callable[..., World]) -> None:
    world = make_world(storage_level=StorageLevel.NOT_IN_MEM)
    world.put(100)
    world.upload()
    world.next.in_memory_from[KEY] = 50
    assert bodies(world.get(0, 1)) == ["body 0"]
    assert "get" not in world.next.calls
    assert bodies(world.get(50, 1)) == ["body 50"]
    assert "get" in world.next.calls


def test_a_tier_that_begins_later_hides_nothing_that_is_on_the_disk(
    make_world: Callable[..., World],
) -> None:
    world = make_world(storage_level=StorageLevel.NOT_IN_MEM)
    world.put(100)
    world.upload()
    existing(world.store.flat_files, KEY).expire(BEGIN_MS + 995)
    world.put(10)
    world.upload()
    world.next.in_memory_from[KEY] = 110
    assert bodies(world.get(0, 1)) == ["body 0"]
    assert bodies(world.get(99, 1)) == ["body 99"]
    assert bodies(world.get(100, 1)) == ["body 100"]


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "%LMQ%a", "C"])
def test_system_topics_are_the_next_stores_alone(
    make_world: Callable[..., World], topic: str
) -> None:
    world = make_world(storage_level=StorageLevel.FORCE)
    world.put(10, topic=topic)
    world.upload()
    assert world.store.flat_files.get(topic, 0) is None
    assert len(world.get(0, topic=topic).messages) == 10
    assert world.store.get_min_offset_in_queue(topic, 0) == 0
    assert len(world.store.query_message(topic, "all", 100, 0, FAR_MS)) == 10
    assert world.store.get_message_store_timestamp(topic, 0, 3) == BEGIN_MS + 30


def test_deleted_topics_are_gone_from_both_and_may_be_made_again(world: World) -> None:
    world.put(5, topic="Other")
    world.upload()
    assert world.store.delete_topics({TOPIC, "Nobody"}) == 1
    assert world.get(0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    assert world.store.query_message(TOPIC, "k7", 10, 0, FAR_MS) == []
    assert len(world.get(0, topic="Other").messages) == 5
    world.put(8, key="new")
    world.upload()
    world.next.low.update({KEY: 8, QueueKey("Other", 0): 5})
    assert bodies(world.get(0)) == [f"body {n}" for n in range(8)]
    assert world.store.query_message(TOPIC, "k7", 10, 0, FAR_MS) == []
    assert offsets(world.store.query_message(TOPIC, "new7", 10, 0, FAR_MS)) == [(0, 7)]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("call", range(1, 5))
def test_w03_a_topic_deleted_in_the_middle_of_an_upload_is_not_announced_again(
    make_world: Callable[..., World], call: int, is_known: bool
) -> None:
    world = make_world()
    world.put(5)
    if is_known:
        world.upload()
        world.put(5)
    source = world.next.dispatch_source
    known, calls = source.queue_range, []

    def deleted_meanwhile(key: QueueKey) -> QueueRange | None:
        found = known(key)
        calls.append(key)
        if len(calls) == call:
            world.store.delete_topics({TOPIC})
        return found

    patch(world.next, queue_range=deleted_meanwhile)
    outcomes = world.store.dispatcher.scan(force=True)
    assert len(calls) >= call
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
    assert world.store.dispatcher.failing_queues == {}
    metadata = world.store.flat_files.metadata
    assert metadata.topic(TOPIC) is None
    assert world.store.flat_files.get(TOPIC, 0) is None  # it does not stay in memory
    assert [entry for entry in metadata.segments() if TOPIC in entry.path] == []
    assert list((world.path / "tier").rglob(f"{TOPIC}/*/COMMIT_LOG/[!.]*")) == []
    world.put(3, key="new")
    world.upload()
    world.next.low[KEY] = 3
    assert bodies(world.get(0)) == [f"body {n}" for n in range(3)]


def test_history_survives_a_restart(world: World) -> None:
    world.restart()
    assert bodies(world.get(0))[:2] == ["body 0", "body 1"]
    assert offsets(world.store.query_message(TOPIC, "k7", 10, 0, FAR_MS)) == [(0, 7)]
    world.upload()
    world.next.low[KEY] = 120
    assert bodies(world.get(115)) == [f"body {n}" for n in range(115, 120)]


def test_each_background_loop_says_how_it_is(world: World) -> None:
    def states() -> dict[str, ServiceState]:
        return {health.name: health.state for health in world.store.health()}

    names = {"tiered-index", "tiered-dispatcher", "tiered-expiry", "tiered-backup", "tiered-trace"}
    names |= {"tiered-right"}
    assert states() == dict.fromkeys(names, ServiceState.STOPPED)
    world.store.start()
    assert states() == dict.fromkeys(names, ServiceState.RUNNING)
    world.store.shutdown()
    assert states() == dict.fromkeys(names, ServiceState.STOPPED)


def test_the_next_store_may_delete_what_is_uploaded_only(world: World) -> None:
    world.store.start()
    assert world.guard(KEY) in (100, 120)
    world.upload()
    assert world.guard(KEY) == 120
    assert world.guard(QueueKey("New", 0)) == 0
    assert world.guard(QueueKey("SCHEDULE_TOPIC_XXXX", 0)) is None


def test_a_tier_in_memory_never_counts_as_having_taken_anything(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(provider=MemoryProvider())
    assert "keeps nothing" in caplog.text
    world.put(10)
    world.upload()
    world.store.start()
    assert world.guard(KEY) is None


def test_a_next_store_that_refuses_leaves_the_tier_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: InMemoryStore) -> None:
        raise Invalid("no message store")

    monkeypatch.setattr(InMemoryStore, "load", refuse)
    with pytest.raises(Invalid, match="no message store"):
        World(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_of_one_tier_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(Fenced):
        World(tmp_path / "0")
    world.store.shutdown()
    World(tmp_path / "0").store.shutdown()


def test_a_slave_reads_the_tier_and_never_writes_it(world: World) -> None:
    world.store.shutdown()
    before = sorted(str(path) for path in (world.path / "tier").rglob("*"))
    world.config["broker_role"] = "SLAVE"
    store = world.open()
    store.start()
    assert bodies(world.get(0))[0] == "body 0"
    assert store.dispatcher.scan(force=True) == []
    store.shutdown()
    assert sorted(str(path) for path in (world.path / "tier").rglob("*")) == before


def test_a_slave_writes_no_metadata_and_deletes_nothing_from_the_tier(world: World) -> None:
    world.store.shutdown()
    metadata = world.metadata()
    metadata.load()
    [index] = metadata.segments(type=FileSegmentType.INDEX)
    assert index.size > 0
    index.size = 0  # a writer that was killed had not recorded it yet
    metadata.put_segment(index)
    metadata.flush()
    before = {path: path.read_bytes() for path in (world.path / "config").iterdir()}
    tier = sorted(str(path) for path in (world.path / "tier").rglob("*"))
    world.config["broker_role"] = "SLAVE"
    store = world.open()
    store.start()
    assert offsets(store.query_message(TOPIC, "k7", 10, 0, FAR_MS)) == [(0, 7)]
    store.delete_topics({TOPIC})
    store.shutdown()
    assert {path: path.read_bytes() for path in (world.path / "config").iterdir()} == before
    assert sorted(str(path) for path in (world.path / "tier").rglob("*")) == tier


def test_an_unmounted_tier_is_not_taken_for_an_empty_one(world: World) -> None:
    world.store.shutdown()
    (world.path / "tier").rename(world.path / "unmounted")
    with pytest.raises(Unavailable):
        world.open()
    assert not (world.path / "tier").exists()
    (world.path / "unmounted").rename(world.path / "tier")
    world.open()
    assert bodies(world.get(0))[0] == "body 0"


def test_shutdown_may_be_called_twice_and_stops_the_next_store_once(world: World) -> None:
    world.store.start()
    world.store.shutdown()
    world.store.shutdown()
    assert world.next.calls.count("shutdown") == 1


def test_topics_keep_their_own_retention(make_world: Callable[..., World]) -> None:
    world = make_world(file_reserved_time_hours=1)
    world.put(10)
    world.put(10, topic="Kept")
    world.upload()
    world.next.reserve_hours = {"Kept": 10**6}
    world.store.expiry.run_once()
    assert existing(world.store.flat_files, KEY).consume_queue_min_offset == 10
    assert existing(world.store.flat_files, QueueKey("Kept", 0)).consume_queue_min_offset == 0


def test_defect_d25_topics_that_a_tier_cannot_hold_are_left_out_with_a_reason_and_a_metric(
    world: World,
) -> None:
    world.next.left_out = {"Compacted": "compaction topic"}
    world.store.shutdown()
    store = world.open()
    assert store.topic_filter.reason("Compacted") == "compaction topic"
    assert store.metrics.value(EXCLUDED_METRIC, reason="compaction topic") == 1


def test_gauges_have_javas_names(world: World) -> None:
    world.get(0)
    world.store.collect_metrics()
    found = {
        name: value
        for name, _, value in world.store.metrics.snapshot()
        if not isinstance(value, Histogram)
    }
    assert found["rocketmq_tiered_store_read_ahead_cache_count"] == 1
    assert found["rocketmq_tiered_store_read_ahead_cache_bytes"] > 1000
    assert found["rocketmq_tiered_store_read_ahead_cache_access_total"] == 1
    assert found["rocketmq_tiered_store_read_ahead_cache_hit_total"] == 0
    assert found["rocketmq_storage_message_reserve_time"] > 0
    size = world.store.metrics.value(
        "rocketmq_storage_size", topic=f"{BROKER}/{TOPIC}/0", file_type="consume_queue"
    )
    assert size == 2000


TIER = "tieredstore.tier."
READS = "tieredstore.tier.reads"


def walk(world: World, offset: int) -> list[str]:
    """Return the modules of `tieredstore.tier` used by a get, in order and without consecutive
    duplicates."""
    frames: list[FrameType] = []
    passed: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not any(known is frame for known in frames):
            frames.append(frame)  # a generator that goes on has the same one
            passed.append(str(frame.f_globals.get("__name__")))

    sys.setprofile(note)
    try:
        result = world.get(offset)
    finally:
        sys.setprofile(None)
    assert result.status is GetMessageStatus.FOUND
    assert result.messages[0].queue_offset == offset
    return [name for name, _ in groupby(name for name in passed if name.startswith(TIER))]


def test_a_cold_read_passes_few_modules(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_fetcher, "SLOW_MS", 2**62)  # a slow read fetches ahead
    first = walk(world, 0)  # nothing is known of the queue
    assert len(set(first)) <= 15
    assert len(first) <= 66  # a step more for each read that is not at hand
    assert first.count(READS) <= 3
    cached = walk(world, 0)
    assert len(set(cached)) <= 10
    assert len(cached) <= 24
    assert cached.count(READS) <= 3


def find_plan(world: World, level: StorageLevel, offset: int) -> list[ReadSource]:
    file = world.store.flat_files.get(*KEY)
    return list(plan_read(level, world.next, file, KEY, offset, 1))


TIER_FIRST = [ReadSource.TIER, ReadSource.NEXT_STORE, ReadSource.TIER]
STORE_FIRST = [ReadSource.NEXT_STORE, ReadSource.TIER]


@pytest.mark.parametrize(
    ("level", "offset", "sources"),
    [
        (StorageLevel.DISABLE, 0, [ReadSource.NEXT_STORE]),
        (StorageLevel.NOT_IN_DISK, 0, TIER_FIRST),
        (StorageLevel.NOT_IN_DISK, 60, STORE_FIRST),
        (StorageLevel.NOT_IN_DISK, 100, STORE_FIRST),
        (StorageLevel.FORCE, 60, TIER_FIRST),
    ],
)
def test_a_plan_names_the_sources_in_order(
    world: World, level: StorageLevel, offset: int, sources: list[ReadSource]
) -> None:
    assert find_plan(world, level, offset) == sources


def test_what_only_the_next_store_has_is_asked_there_under_force_too(world: World) -> None:
    assert find_plan(world, StorageLevel.FORCE, 100) == STORE_FIRST
    world.upload()
    assert find_plan(world, StorageLevel.FORCE, 120) == TIER_FIRST  # both end there
