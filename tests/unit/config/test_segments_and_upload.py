"""Tests of the keys for segments, group commit and upload sizes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable

import pytest

from tests.kit.configured_broker import (
    FOREVER,
    HOUR_MS,
    TOPIC,
    Broker,
    Call,
    MakeBroker,
    conf,
    sizes,
)
from tieredstore import registry
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Invalid
from tieredstore.message.encoding import Message
from tieredstore.message.index.tiered import compacted_size
from tieredstore.tier.flat.file_store import FlatFileStore

COMMIT_LOG, CONSUME_QUEUE, INDEX = FileSegmentType


def record_size(broker: MakeBroker) -> int:
    made = broker()
    made.put(1)
    return made.get(0, 1).messages[0].size


@pytest.mark.parametrize(("backlog", "first", "uploaded"), [("all", 0, 7), ("recent", 4, 3)])
def test_backlog_is_what_of_a_queue_goes_to_the_tier_at_first(
    broker: MakeBroker, backlog: str, first: int, uploaded: int
) -> None:
    made = broker(tieredStoreBacklog=backlog)
    made.put(4)
    made.clock.advance(HOUR_MS)
    made.put(3)
    assert made.upload() == uploaded
    assert made.store.flat_files.get("TopicA", 0).consume_queue_min_offset == first


@pytest.mark.parametrize("adopts", [False, True])
def test_adopt_lets_a_new_local_store_go_on_behind_the_tier(
    broker: MakeBroker, adopts: bool
) -> None:
    made = broker(tieredBackendServiceProvider="posix")
    made.put(5)
    made.upload()
    made.store.shutdown()
    shutil.rmtree(made.root / "store" / "commitlog")
    shutil.rmtree(made.root / "store" / "consumequeue")
    loaded = conf(made.root, tieredBackendServiceProvider="posix", tieredStoreAdopt=adopts)
    store = registry.message_store(loaded, made.clock)
    if not adopts:
        with pytest.raises(Invalid, match="tieredStoreAdopt"):
            store.load()
        return
    store.load()
    store.start()
    assert store.put_message(Message.create(TOPIC, b"x")).queue_offset == 5
    store.shutdown()


@pytest.mark.parametrize("messages", [5, 10])
def test_commit_log_max_size_is_the_largest_commit_log_segment(
    broker: MakeBroker, messages: int
) -> None:
    size = record_size(broker)
    made = broker(tieredStoreCommitLogMaxSize=messages * size)
    made.put(10)
    made.upload()
    limit = messages * size
    assert made.segments(COMMIT_LOG) == dict.fromkeys(range(0, 10 * size, limit), limit)


@pytest.mark.parametrize(("key_value", "units"), [(80, 4), (219, 10)])
def test_consume_queue_max_size_is_the_largest_consume_queue_segment(
    broker: MakeBroker, key_value: int, units: int
) -> None:
    made = broker(tieredStoreConsumeQueueMaxSize=key_value)
    made.put(20)
    made.upload()
    assert made.segments(CONSUME_QUEUE) == dict.fromkeys(range(0, 20 * 20, units * 20), units * 20)


def rolls_after(made: Broker, hours: int) -> bool:
    """Return whether an upload after the given time starts a new commit log segment."""
    made.put(3)
    made.upload()
    made.clock.advance(hours * HOUR_MS + 1)
    made.put(3)
    made.upload()
    return len(made.segments(COMMIT_LOG)) == 2


@pytest.mark.parametrize(("interval", "rolls"), [(2, True), (24, False)])
def test_commit_log_rolling_interval_is_the_age_at_which_a_segment_ends(
    broker: MakeBroker, interval: int, rolls: bool
) -> None:
    made = broker(commitLogRollingInterval=interval, commitLogRollingMinimumSize=1)
    assert rolls_after(made, 2) == rolls


def test_commit_log_rolling_minimum_size_keeps_small_segments_whatever_their_age(
    broker: MakeBroker,
) -> None:
    size = record_size(broker)
    for minimum, rolls in ((3 * size, True), (3 * size + 1, False)):
        made = broker(commitLogRollingInterval=2, commitLogRollingMinimumSize=minimum)
        assert rolls_after(made, 2) == rolls


@pytest.mark.parametrize("slots", [10, 300])
def test_index_file_max_hash_slot_num_is_in_the_size_of_an_index_segment(
    broker: MakeBroker, slots: int
) -> None:
    made = broker(tieredStoreIndexFileMaxHashSlotNum=slots)
    made.put(4)  # two keys each
    made.upload()
    made.store.index.seal_and_upload(force=True)
    assert made.segments(INDEX) == {0: compacted_size(slots, 8)}


@pytest.mark.parametrize(("max_items", "items"), [(6, [5, 5, 5, 5]), (16, [15, 5])])
def test_index_file_max_index_num_is_how_many_keys_a_tiered_index_file_takes(
    broker: MakeBroker, max_items: int, items: list[int]
) -> None:
    made = broker(tieredStoreIndexFileMaxIndexNum=max_items)
    made.put(10)
    made.upload()
    made.store.index.seal_and_upload(force=True)
    assert list(made.segments(INDEX).values()) == [compacted_size(10, count) for count in items]
    found = made.store.fetcher.query_message("TopicA", "all", 1000, *FOREVER)
    assert len(found) == 10


@pytest.mark.parametrize(("gather", "uploaded"), [(True, 0), (False, 5)])
def test_group_commit_gathers_messages_before_an_upload(
    broker: MakeBroker, gather: bool, uploaded: int
) -> None:
    made = broker(tieredStoreGroupCommit=gather)
    made.put(5)
    assert made.scan() == uploaded


@pytest.mark.parametrize(("timeout_ms", "uploaded"), [(999, 5), (1000, 0)])
def test_group_commit_timeout_is_the_age_at_which_messages_go(
    broker: MakeBroker, timeout_ms: int, uploaded: int
) -> None:
    made = broker(tieredStoreGroupCommitTimeout=timeout_ms)
    made.put(5)
    made.clock.advance(1000)
    assert made.scan() == uploaded


def test_group_commit_count_is_the_backlog_that_starts_an_upload(broker: MakeBroker) -> None:
    for count, uploaded in ((4, 4), (5, 0)):
        made = broker(tieredStoreGroupCommitCount=count)
        made.put(5)
        assert made.scan() == uploaded


@pytest.mark.parametrize(("count", "units"), [(4, [4, 4, 2]), (10, [10])])
def test_group_commit_count_is_the_most_messages_of_a_write(
    broker: MakeBroker, count: int, units: list[int]
) -> None:
    made = broker(tieredStoreGroupCommitCount=count)
    made.put(10)
    made.upload()
    assert sizes(made.provider.writes, CONSUME_QUEUE) == [20 * number for number in units]


def test_group_commit_size_is_the_most_bytes_of_a_write(broker: MakeBroker) -> None:
    size = record_size(broker)
    for limit, messages in ((4 * size + 1, [4, 4, 2]), (100 * size, [10]), (1, [1] * 10)):
        made = broker(tieredStoreGroupCommitSize=limit)
        made.put(10)
        made.upload()
        assert sizes(made.provider.writes, COMMIT_LOG) == [number * size for number in messages]


@pytest.mark.parametrize(("limit", "messages"), [(3, [3, 3, 3, 1]), (10, [10])])
def test_max_group_commit_count_is_how_much_may_wait_for_a_commit(
    broker: MakeBroker, limit: int, messages: list[int]
) -> None:
    size = record_size(broker)
    made = broker(tieredStoreMaxGroupCommitCount=limit)
    made.put(10)
    made.upload()
    assert sizes(made.provider.writes, COMMIT_LOG) == [number * size for number in messages]


def workers(calls: Iterable[Call]) -> int:
    return len({call.thread for call in calls})


def upload_from_queues(made: Broker, queues: int, together: int) -> int:
    """Upload from `queues` queues and return the number of threads that wrote. Each thread's first
    write waits until `together` threads are writing."""
    for queue_id in range(queues):
        made.put(1, queue_id=queue_id)
    with made.provider.meetings(together):
        assert made.upload() == queues
    return workers(made.provider.writes)


@pytest.mark.parametrize("threads", [1, 3])
def test_dispatch_threads_upload_at_once(broker: MakeBroker, threads: int) -> None:
    made = broker(tieredStoreDispatchThreads=threads)
    assert upload_from_queues(made, 6, threads) == threads


@pytest.mark.parametrize(("limit", "threads"), [(4, 1), (12, 3), (40, 5)])
def test_max_pending_limit_bounds_the_queues_in_upload(
    broker: MakeBroker, limit: int, threads: int
) -> None:
    made = broker(tieredStoreMaxPendingLimit=limit, tieredStoreDispatchThreads=5)
    assert upload_from_queues(made, 6, threads) == threads


@pytest.mark.parametrize(("limit", "threads"), [(4, 1), (12, 3)])
def test_max_pending_limit_bounds_the_queues_in_recovery(
    broker: MakeBroker, limit: int, threads: int
) -> None:
    made = broker()
    for queue_id in range(6):
        made.put(1, queue_id=queue_id)
    made.upload()
    provider, metadata = made.provider, made.store._metadata
    provider.reads.clear()
    config = conf(made.root, tieredStoreMaxPendingLimit=limit).config
    files = FlatFileStore(config, provider, metadata)
    with provider.meetings(threads):
        files.load()
    assert len(list(files.files())) == 6
    assert workers(provider.reads) == threads


@pytest.mark.parametrize(("limit", "refused"), [(4, 2), (6, 0)])
def test_max_pending_limit_bounds_the_reads_of_coroutines(
    broker: MakeBroker, limit: int, refused: int
) -> None:
    made = broker(tieredStoreMaxPendingLimit=limit, readAheadCacheEnable=False)
    made.put(6)
    made.upload()

    async def get_all() -> list[GetMessageResult]:
        gets = (made.store.fetcher.get_message_async("g", "TopicA", 0, n, 1) for n in range(6))
        return list(await asyncio.gather(*gets))

    with made.provider.meetings(min(limit, 6)):
        statuses = [result.status for result in asyncio.run(get_all())]
    assert statuses.count(GetMessageStatus.FOUND) == 6 - refused
    assert statuses.count(GetMessageStatus.OFFSET_FOUND_NULL) == refused


@pytest.mark.parametrize(
    ("key_value", "waited_ms", "uploaded"),
    [(600_000, 600_000, 0), (600_000, 600_001, 5), (100_000, 100_001, 5), (0, 30_001, 5)],
)
def test_adaptive_commit_max_interval_is_how_long_a_slow_queue_waits(
    broker: MakeBroker, key_value: int, waited_ms: int, uploaded: int
) -> None:
    made = broker(tieredStoreAdaptiveCommitMaxInterval=key_value)
    made.provider.prefer(8 << 20)
    made.put(5)
    made.clock.advance(waited_ms)
    assert made.scan() == uploaded
