"""Tests of the dispatcher's uploads: content, timing and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NoReturn

import pytest

from tests.kit.tier.flat import (
    BROKER,
    T0,
    ListIndex,
    ListSource,
    Tier,
    bodies,
    config,
    existing,
    patch,
    record,
)
from tests.kit.tier.writing import become_writer
from tieredstore.config import StorageLevel, StoreConfig, change_config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentId,
    SegmentListing,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.errors import Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import dispatcher as module
from tieredstore.tier.upload import rounds
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

SCAN_MS = StoreConfig().dispatch_interval_ms
KEY = QueueKey("TopicA", 0)
OTHER = QueueKey("TopicB", 3)


class Rig:
    """A source, a tier, and a dispatcher that uploads from one to the other."""

    def __init__(self, **settings: Any) -> None:
        self.tier = Tier(settings=settings)
        self.source = ListSource()
        self.index = ListIndex()
        self.metrics = Metrics()
        self.restart()

    def restart(self) -> None:
        self.store = self.tier.store()
        settings = config(**self.tier.settings)
        self.filter = TopicFilter(settings, self.metrics)
        self.dispatcher = MessageStoreDispatcher(
            settings,
            self.source,
            self.store,
            self.index,
            self.filter,
            self.tier.clock,
            self.metrics,
        )

    def offsets(self, key: QueueKey = KEY) -> list[int]:
        file = self.store.get(*key)
        return [] if file is None else [offset for offset, _ in bodies(file)]

    def one(self, key: QueueKey = KEY, force: bool = True) -> DispatchOutcome:
        return self.dispatcher.dispatch(key, force)


@pytest.fixture
def rig() -> Rig:
    return Rig()


# Group commit


def test_young_messages_wait_for_a_batch(rig: Rig) -> None:
    rig.tier.clock.set(T0 + 30_000)
    rig.source.put(KEY, 0, 5)
    outcome = rig.one(force=False)
    assert outcome.status is DispatchStatus.HELD
    assert rig.offsets() == []
    rig.tier.clock.advance(1)
    assert rig.one(force=False).status is DispatchStatus.UPLOADED
    assert rig.offsets() == [0, 1, 2, 3, 4]


def test_a_held_queue_is_not_read_again_at_each_scan(rig: Rig) -> None:
    rig.tier.clock.set(T0)
    rig.source.put(KEY, 0, 5)
    rig.one(force=False)
    rig.source.reads.clear()
    rig.one(force=False)
    assert rig.source.reads == []


def test_a_clock_that_was_set_back_holds_nothing(rig: Rig) -> None:
    rig.tier.clock.set(T0 - 365 * 86_400_000)
    rig.source.put(KEY, 0, 5)
    assert rig.one(force=False).status is DispatchStatus.UPLOADED


def test_a_backlog_beyond_the_count_does_not_wait() -> None:
    rig = Rig(group_commit_count=4)
    rig.tier.clock.set(T0)
    rig.source.put(KEY, 0, 4)
    assert rig.one(force=False).status is DispatchStatus.HELD
    rig.source.put(KEY, 4, 1)
    outcome = rig.one(force=False)
    assert (outcome.status, outcome.messages) == (DispatchStatus.UPLOADED, 4)
    assert rig.offsets() == [0, 1, 2, 3]  # the fifth is young again


def test_without_group_commit_everything_goes_at_once() -> None:
    rig = Rig(group_commit=False)
    rig.tier.clock.set(T0)
    rig.source.put(KEY, 0, 1)
    assert rig.one(force=False).messages == 1


def test_a_visit_goes_on_while_old_messages_are_left() -> None:
    rig = Rig(group_commit_count=3)
    rig.source.put(KEY, 0, 10)
    assert rig.one(force=False).messages == 10
    assert rig.offsets() == list(range(10))


def test_a_batch_stays_below_the_size_limit() -> None:
    size = len(record(0)[0])
    rig = Rig(group_commit_size_bytes=3 * size + 1)
    rig.source.put(KEY, 0, 7)
    writes = []
    original = rig.tier.provider.open

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        write = segment.write

        def counted(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            writes.append((id.type.name, sum(len(b) for b in buffers)))
            return write(position, buffers)

        patch(segment, write=counted)
        return segment

    patch(rig.tier.provider, open=opened)
    rig.one()
    assert [n // size for kind, n in writes if kind == "COMMIT_LOG"] == [3, 3, 1]


def test_nothing_new_is_idle(rig: Rig) -> None:
    rig.source.put(KEY, 0, 2)
    rig.one()
    assert rig.one().status is DispatchStatus.IDLE
    assert rig.dispatcher.scan() == []


# Where a queue begins


def test_defect_d04_the_backlog_is_uploaded_too(rig: Rig) -> None:
    rig.source.put(KEY, 40, 10)
    rig.source.clean(KEY, 42)
    rig.tier.clock.advance(10 * 86_400_000)
    rig.dispatcher.scan()
    assert rig.offsets() == list(range(42, 50))


def test_backlog_recent_begins_two_minutes_ago() -> None:
    rig = Rig(backlog="recent")
    rig.source.put(KEY, 0, 10)
    rig.tier.clock.set(T0 + 120_000 + 4)
    rig.dispatcher.scan(force=True)
    assert rig.offsets() == [4, 5, 6, 7, 8, 9]


def test_a_queue_without_messages_is_not_announced(rig: Rig) -> None:
    rig.source.put(KEY, 0, 3)
    rig.source.lose(KEY, 0)
    assert rig.dispatcher.scan() == []
    assert rig.one().status is DispatchStatus.IDLE
    assert not rig.tier.table.segment_table


def test_a_queue_is_announced_by_the_scan_and_not_by_its_messages(rig: Rig) -> None:
    rig.source.put(KEY, 0, 1)
    assert rig.store.get(*KEY) is None
    assert not rig.tier.table.segment_table
    rig.dispatcher.scan()
    assert rig.tier.table.segment_table
    assert existing(rig.store, KEY).is_initialised


def test_an_announcement_that_is_not_kept_is_an_error_and_made_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.source.put(KEY, 0, 3)

    @contextmanager
    def lose() -> Iterator[None]:
        yield
        raise Unavailable("the metadata was not written")

    with monkeypatch.context() as patching:
        patching.setattr(rig.tier.metadata, "batch", lose)
        with pytest.raises(Unavailable, match="the metadata was not written"):
            rig.dispatcher.scan(force=True)
    assert not existing(rig.store, KEY).is_initialised
    rig.dispatcher.scan(force=True)
    assert rig.offsets() == [0, 1, 2]


def test_an_unknown_queue_is_said_to_be_unknown(rig: Rig) -> None:
    assert rig.one().status is DispatchStatus.UNKNOWN


# Defects of the original


def test_defect_d01_a_message_beyond_the_batch_size_does_not_stop_its_queue() -> None:
    rig = Rig(group_commit_size_bytes=500, commit_log_max_size_bytes=800)
    rig.source.put(KEY, 0, 2)
    rig.source.put(KEY, 2, 1, body_size=3000)
    rig.source.put(KEY, 3, 2)
    outcome = rig.one()
    assert outcome.error is None
    assert rig.offsets() == [0, 1, 2, 3, 4]
    segments = existing(rig.store, KEY).commit_log.segments
    assert [s.commit_position > 3000 for s in segments] == [False, True, False]


def test_defect_d02_a_message_without_properties_is_uploaded_once(rig: Rig) -> None:
    rig.source.put(KEY, 0, 3, tags=None)
    rig.source.put(KEY, 3, 1, keys=("k3",))
    rig.dispatcher.scan()
    rig.dispatcher.scan()
    assert rig.offsets() == [0, 1, 2, 3]
    assert rig.index.keys() == ["k3"]
    size = existing(rig.store, KEY).commit_log_commit_offset
    assert size == sum(len(one[0]) for one in rig.source.tables[KEY].values())


def test_defect_d03_dispatch_gap_keeps_history(rig: Rig) -> None:
    rig.source.put(KEY, 0, 5)
    rig.one()
    rig.source.put(KEY, 5, 20)
    rig.source.clean(KEY, 15)
    outcome = rig.one()
    assert outcome.hole == (5, 15)
    assert rig.offsets() == [*range(5), *range(15, 25)]
    file = existing(rig.store, KEY)
    assert list(file.holes) == [(5, 15)]
    assert [file.next_valid_offset(q) for q in (4, 5, 14, 15, 25, 99)] == [4, 15, 15, 15, 25, 25]
    assert rig.metrics.value(module_metric("GAP"), topic="TopicA", queue_id=0) == 10
    rig.restart()
    assert list(existing(rig.store, KEY).holes) == [(5, 15)]
    assert rig.offsets() == [*range(5), *range(15, 25)]


def test_defect_d03_a_gap_before_the_first_upload_leaves_no_hole(rig: Rig) -> None:
    rig.source.put(KEY, 0, 5)
    rig.store.get_or_create(*KEY).init_offset(0)
    rig.source.clean(KEY, 3)
    rig.one()
    assert rig.offsets() == [3, 4]
    assert list(existing(rig.store, KEY).holes) == []
    assert len(existing(rig.store, KEY).consume_queue.segments) == 1
    rig.restart()
    assert rig.offsets() == [3, 4]


def test_defect_d24_a_local_store_behind_the_tier_stops_its_queue(rig: Rig) -> None:
    rig.source.put(KEY, 0, 10)
    rig.source.put(OTHER, 0, 2)
    rig.one()
    rig.source.lose(KEY, 6)
    outcome = rig.one()
    assert outcome.status is DispatchStatus.FAILED
    assert isinstance(outcome.error, Corrupt)
    assert outcome.error.offset == 6
    assert KEY in rig.dispatcher.failing_queues
    # New messages take the same queue offsets: they are not the ones in the tier.
    rig.source.put(KEY, 6, 6, body_size=33)
    outcome = rig.one()
    assert isinstance(outcome.error, Corrupt)
    assert outcome.error.offset == 9
    assert rig.offsets() == list(range(10))
    assert rig.one(OTHER).messages == 2


def test_defect_d24_another_local_store_is_noticed_at_the_first_visit(rig: Rig) -> None:
    rig.source.put(KEY, 0, 3)
    rig.one()
    rig.restart()
    rig.source.put(KEY, 0, 5, body_size=50)
    assert isinstance(rig.one().error, Corrupt)
    assert rig.offsets() == [0, 1, 2]


def module_metric(which: str) -> str:
    from tieredstore.tier.upload import queue_upload as upload

    return {"GAP": upload.GAP_METRIC}[which]


# Topics


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_REVIVE_LOG_x",
        "%LMQ%a",
        BROKER,
        "DefaultCluster",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    ],
)
def test_system_topics_are_not_uploaded(rig: Rig, topic: str) -> None:
    key = QueueKey(topic, 0)
    rig.source.put(key, 0, 2)
    assert rig.dispatcher.scan(force=True) == []
    assert rig.one(key).status is DispatchStatus.FILTERED


@pytest.mark.parametrize("topic", [".hidden", "..x", "a\nb", "tab\there", "a/b"])
def test_i02_topics_that_no_tier_can_hold_stay_out_with_a_reason(rig: Rig, topic: str) -> None:
    key = QueueKey(topic, 0)
    rig.source.put(key, 0, 2)
    assert rig.dispatcher.scan(force=True) == []
    assert rig.filter.reason(topic) == "a name that no tier can hold"
    assert rig.dispatcher.retention_guard(key) is None
    assert rig.store.get(*key) is None


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g", "DefaultCluster_REPLY_TOPIC"])
def test_retry_and_dead_letter_topics_are_uploaded(rig: Rig, topic: str) -> None:
    key = QueueKey(topic, 0)
    rig.source.put(key, 0, 2)
    rig.dispatcher.scan(force=True)
    assert rig.offsets(key) == [0, 1]


def test_defect_d25_excluded_topics_stay_out_with_a_reason_and_a_metric(rig: Rig) -> None:
    rig.filter.exclude("TopicA", "BatchCQ")
    rig.source.put(KEY, 0, 2)
    assert rig.dispatcher.scan(force=True) == []
    assert rig.filter.reason("TopicA") == "BatchCQ"
    assert rig.metrics.value("rocketmq_tiered_store_x_excluded_topics", reason="BatchCQ") == 1


def test_a_topic_that_is_filtered_now_keeps_what_it_has(rig: Rig) -> None:
    rig.source.put(KEY, 0, 2)
    rig.one()
    rig.filter.exclude("TopicA", "black list")
    rig.source.put(KEY, 2, 2)
    assert rig.one().status is DispatchStatus.FILTERED
    assert rig.offsets() == [0, 1]
    rig.filter.include("TopicA")
    rig.one()
    assert rig.offsets() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "settings", [{"storage_level": StorageLevel.DISABLE}, {"broker_role": "SLAVE"}]
)
def test_a_disabled_tier_and_a_slave_upload_nothing(settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    rig.source.put(KEY, 0, 2)
    assert rig.dispatcher.scan(force=True) == []
    assert rig.one().status is DispatchStatus.DISABLED
    assert rig.dispatcher.retention_guard(KEY) is None
    rig.dispatcher.start()
    assert rig.source.guard is None


# Errors


def failing_writes(rig: Rig, error: Exception, key: QueueKey = KEY) -> dict[str, bool]:
    original = rig.tier.provider.open
    state = {"on": True}

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        write = segment.write

        def failing(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            if state["on"] and id.path.endswith(f"{key.topic}/{key.queue_id}"):
                raise error
            return write(position, buffers)

        patch(segment, write=failing)
        return segment

    patch(rig.tier.provider, open=opened)
    return state


def test_a_failing_queue_stops_no_other_and_goes_on_later(rig: Rig) -> None:
    state = failing_writes(rig, Unavailable("down"))
    rig.source.put(KEY, 0, 3)
    rig.source.put(OTHER, 0, 3)
    outcomes = {outcome.key: outcome for outcome in rig.dispatcher.scan(force=True)}
    assert outcomes[KEY].status is DispatchStatus.FAILED
    assert outcomes[OTHER].messages == 3
    assert not existing(rig.store, KEY).has_uncommitted  # no message stays in memory
    state["on"] = False
    rig.dispatcher.scan(force=True)
    assert rig.offsets() == [0, 1, 2]
    assert rig.dispatcher.failing_queues == {}
    assert len(existing(rig.store, KEY).commit_log.segments) == 1


def test_a_scan_gives_an_unavailable_backend_a_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "GIVE_UP_AFTER", 3)
    rig.dispatcher = MessageStoreDispatcher(
        config(dispatch_threads=1),
        rig.source,
        rig.store,
        None,
        rig.filter,
        rig.tier.clock,
        rig.metrics,
    )
    for queue_id in range(10):
        key = QueueKey("TopicA", queue_id)
        rig.source.put(key, 0, 1)
        failing_writes(rig, Unavailable("down"), key)
    assert len(rig.dispatcher.scan(force=True)) == 3


def test_fenced_stops_the_dispatcher(rig: Rig) -> None:
    state = failing_writes(rig, Fenced("another writer"))
    rig.source.put(KEY, 0, 3)
    with pytest.raises(Fenced):
        rig.dispatcher.scan(force=True)
    state["on"] = False
    with pytest.raises(Fenced):
        rig.dispatcher.scan(force=True)
    assert rig.one().status is DispatchStatus.STOPPED
    assert rig.offsets() == []


def test_a_writer_that_lost_its_epoch_uploads_nothing(rig: Rig) -> None:
    become_writer(rig.store)
    rig.tier.provider.acquire_writer(BROKER, take_over=True)
    rig.source.put(KEY, 0, 3)
    with pytest.raises(Fenced):
        rig.dispatcher.scan(force=True)
    assert rig.offsets() == []


def test_a_missing_local_unit_is_an_error_that_names_the_offset(rig: Rig) -> None:
    rig.source.put(KEY, 0, 5)
    del rig.source.tables[KEY][2]
    outcome = rig.one()
    assert rig.offsets() == [0, 1]
    assert isinstance(outcome.error, TieredStoreError)
    assert outcome.error.offset == 2


def test_a_busy_queue_is_left_alone(rig: Rig) -> None:
    rig.source.put(KEY, 0, 1)
    file = rig.store.get_or_create(*KEY)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with file.lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    assert rig.one(force=False).status is DispatchStatus.BUSY
    release.set()
    thread.join()


# The index


def test_keys_are_indexed_with_their_place_in_the_tier(rig: Rig) -> None:
    rig.source.put(KEY, 0, 2, keys=("a", "b"), uniq_key="u")
    rig.one()
    size = len(record(0, keys=("a", "b"), uniq_key="u")[0])
    assert rig.index.rows == [
        (0, 0, key, at * size, size, T0 + at) for at in (0, 1) for key in ("u", "a", "b")
    ]


def test_without_message_index_no_key_is_put() -> None:
    rig = Rig(message_index_enable=False)
    rig.source.put(KEY, 0, 2, keys=("a",))
    rig.one()
    assert rig.index.rows == []


@pytest.mark.parametrize("begins_on", [False, True])
def test_the_index_is_switched_at_run_time(begins_on: bool) -> None:
    """The index can be enabled and disabled at run time. Missing keys of indexed queues are added
    from the tier. Other queues are indexed from their next upload on."""
    rig = Rig(message_index_enable=begins_on)
    settings = rig.dispatcher._config
    for round_, keys in enumerate(("first", "second", "third")):
        change_config(settings, {"messageIndexEnable": begins_on ^ (round_ == 1)})
        rig.source.put(KEY, round_, 1, keys=(keys,))
        rig.dispatcher.scan(force=True)
    if begins_on:
        assert rig.index.keys() == ["first", "second", "third"]
    else:
        assert rig.index.keys() == ["second"]
        change_config(settings, {"messageIndexEnable": True})
        rig.dispatcher.scan()  # nothing is new, and keys are missing
        assert rig.index.keys() == ["second", "third"]


def test_defect_d21_keys_are_indexed_after_a_crash_between_upload_and_index(rig: Rig) -> None:
    rig.source.put(KEY, 0, 5, keys=("old",))
    rig.index.fail = True
    outcome = rig.one()
    assert (outcome.messages, outcome.error) == (5, None)
    rig.restart()
    rig.index.marks = dict(rig.index.durable_marks)  # what a new process finds
    rig.index.fail = False
    rig.source.put(KEY, 5, 1, keys=("new",))
    rig.one()
    assert rig.index.keys() == ["old"] * 5 + ["new"]
    assert rig.index.marks[0, 0] == existing(rig.store, KEY).commit_log_commit_offset


def test_defect_d21_a_failing_index_keeps_the_order_of_keys(rig: Rig) -> None:
    rig.source.put(KEY, 0, 2, keys=("one",))
    rig.index.fail = True
    rig.one()
    rig.source.put(KEY, 2, 2, keys=("two",))
    rig.index.fail = False
    rig.one()
    assert rig.index.keys() == ["one", "one", "two", "two"]


def test_defect_d21_keys_never_overtake_missing_ones(rig: Rig) -> None:
    """Keys are added to the index in order, so that the watermark never covers missing keys."""
    rig.source.put(KEY, 0, 2, keys=("one",))
    rig.index.fail = True
    rig.one()
    rig.source.put(KEY, 2, 2, keys=("two",))
    put_hashes = rig.index.put_hashes

    def fails_once(*arguments: object, **named: object) -> NoReturn:
        patch(rig.index, put_hashes=put_hashes)
        raise Unavailable("index disk")

    rig.index.fail = False
    patch(rig.index, put_hashes=fails_once)
    assert rig.one().messages == 2
    rig.one()
    assert rig.index.keys() == ["one", "one", "two", "two"]


def test_defect_d21_a_scan_visits_a_queue_that_only_lacks_keys(rig: Rig) -> None:
    rig.source.put(KEY, 0, 2, keys=("one",))
    rig.index.fail = True
    rig.dispatcher.scan(force=True)
    rig.index.fail = False
    rig.dispatcher.scan()
    assert rig.index.keys() == ["one", "one"]


def test_while_the_index_takes_no_keys_the_tier_is_not_read_for_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.source.put(KEY, 0, 50, keys=("one",))
    rig.index.fail = True
    rig.dispatcher.scan(force=True)
    reads: list[int] = []
    read = FlatMessageFile.read_commit_log_as_found

    def counted(file: FlatMessageFile, position: int, length: int) -> Any:
        reads.append(length)
        return read(file, position, length)

    monkeypatch.setattr(FlatMessageFile, "read_commit_log_as_found", counted)
    for _ in range(3):
        rig.dispatcher.scan()
    assert reads == []
    rig.index.fail = False
    rig.dispatcher.scan()
    assert reads
    assert rig.index.keys() == ["one"] * 50


class _CountedReads(WrapperProvider):
    """Counts reads from a tier."""

    def __init__(self) -> None:
        super().__init__(MemoryProvider())
        self.reads = 0

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        read, read_nowait = segment.read, segment.read_nowait

        def counted(position: int, length: int) -> Any:
            self.reads += 1
            return read(position, length)

        def counted_at_hand(position: int, length: int) -> Any:
            found = read_nowait(position, length)
            self.reads += found is not None
            return found

        patch(segment, read=counted, read_nowait=counted_at_hand)
        return segment


def rig_of_counted_reads() -> tuple[Rig, _CountedReads]:
    rig, provider = Rig(), _CountedReads()
    rig.tier.provider = provider
    rig.restart()
    return rig, provider


def test_a_failed_index_makes_no_idle_scan_visit_a_queue_or_read_the_tier() -> None:
    rig, provider = rig_of_counted_reads()
    rig.source.put(KEY, 0, 50, keys=("one",))
    rig.index.fail = True
    rig.dispatcher.scan(force=True)
    provider.reads = 0
    for _ in range(5):
        rig.tier.clock.advance(SCAN_MS)
        assert rig.dispatcher.scan() == []
    rig.source.put(KEY, 50, 1, keys=("one",))
    rig.dispatcher.scan(force=True)  # an upload continues, without reading back either
    assert (provider.reads, rig.index.keys()) == (0, [])
    rig.index.fail = False
    rig.dispatcher.scan()
    assert rig.index.keys() == ["one"] * 51


def test_after_a_start_a_queue_is_not_read_for_keys_that_the_index_has() -> None:
    rig, provider = rig_of_counted_reads()
    for number in range(20):
        rig.source.put(QueueKey("T", number), 0, 5, keys=("one",))
    rig.dispatcher.scan(force=True)
    rig.restart()
    provider.reads = 0
    rig.dispatcher.scan(force=True)
    assert provider.reads == 2 * 20  # the unit and the record of each queue's last message
    assert len(rig.index.rows) == 20 * 5


def test_an_index_that_refuses_what_is_put_is_tried_ever_more_rarely() -> None:
    """The dispatcher retries at increasing intervals while the index has no disk space, and then
    adds all keys."""
    rig, provider = rig_of_counted_reads()
    keys = [QueueKey("T", number) for number in range(10)]
    for key in keys:
        rig.source.put(key, 0, 5, keys=("one",))
    put_hashes = rig.index.put_hashes
    refused: list[int] = []

    def refuse(*arguments: object, **named: object) -> NoReturn:
        refused.append(rig.tier.clock.monotonic_ms())
        raise Unavailable("no space left")

    patch(rig.index, put_hashes=refuse)
    rig.dispatcher.scan(force=True)
    provider.reads, refused[:] = 0, []
    scans = 3_600_000 // SCAN_MS
    for _ in range(scans):
        rig.tier.clock.advance(SCAN_MS)
        rig.dispatcher.scan()
    gaps = [later - before for before, later in pairwise(refused)]
    assert len(refused) <= 6  # in an hour, of all ten queues together
    assert (gaps, max(gaps)) == (sorted(gaps), 600_000)
    assert provider.reads < 10 * len(refused)
    patch(rig.index, put_hashes=put_hashes)
    rig.tier.clock.advance(600_000)
    rig.dispatcher.scan()
    assert rig.index.keys() == ["one"] * 50


def test_a_queue_whose_keys_cannot_be_read_back_keeps_no_other_from_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (KEY, OTHER):
        rig.source.put(key, 0, 3, keys=("one",))
    rig.index.fail = True
    rig.dispatcher.scan(force=True)
    rig.index.fail = False
    read = FlatMessageFile.read_commit_log_as_found

    def failing(file: FlatMessageFile, position: int, length: int) -> Any:
        if file.topic == KEY.topic:
            raise Unavailable("this one cannot be read")
        return read(file, position, length)

    monkeypatch.setattr(FlatMessageFile, "read_commit_log_as_found", failing)
    rig.dispatcher.scan()
    assert rig.index.keys() == ["one"] * 3
    assert rig.dispatcher.scan() == []
    monkeypatch.undo()
    rig.tier.clock.advance(SCAN_MS)
    rig.dispatcher.scan()
    assert rig.index.keys() == ["one"] * 6


def test_the_mark_is_on_disk_before_the_first_byte(rig: Rig) -> None:
    rig.source.put(KEY, 0, 1)
    original = rig.tier.provider.open

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        write = segment.write

        def checked(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            assert (0, 0) in rig.index.durable_marks
            return write(position, buffers)

        patch(segment, write=checked)
        return segment

    patch(rig.tier.provider, open=opened)
    assert rig.dispatcher.scan(force=True)[0].messages == 1


# Many queues


def test_a_scan_visits_only_queues_with_work_and_shares_them_among_workers() -> None:
    rig = Rig(group_commit_count=2)
    for queue_id in range(50):
        rig.source.put(QueueKey("T", queue_id), 0, 1 + queue_id % 7)
    outcomes = rig.dispatcher.scan(force=True)
    assert len(outcomes) == 50
    assert sum(outcome.messages for outcome in outcomes) == sum(1 + q % 7 for q in range(50))
    rig.source.put(QueueKey("T", 9), 100, 1)
    rig.source.tables[QueueKey("T", 9)] = {
        q: record(q, topic="T", queue_id=9) for q in range(1 + 9 % 7 + 1)
    }
    assert [o.key.queue_id for o in rig.dispatcher.scan(force=True)] == [9]


@pytest.mark.parametrize(("threads", "pending", "expected"), [(3, 10_000, 3), (8, 8, 2)])
def test_a_scan_has_as_many_threads_as_are_configured(
    threads: int, pending: int, expected: int
) -> None:
    """A scan uses the configured number of threads, but at most a quarter of
    tieredStoreMaxPendingLimit."""
    rig = Rig(dispatch_threads=threads, max_pending_limit=pending)
    for queue_id in range(12):
        rig.source.put(QueueKey("T", queue_id), 0, 1)
    together = threading.Barrier(expected)
    writers: set[int] = set()
    original = rig.tier.provider.open

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        write = segment.write

        def waiting(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            together.wait(timeout=30)  # broken unless that many write at once
            writers.add(threading.get_ident())
            return write(position, buffers)

        patch(segment, write=waiting)
        return segment

    patch(rig.tier.provider, open=opened)
    outcomes = rig.dispatcher.scan(force=True)
    assert [outcome.messages for outcome in outcomes] == [1] * 12
    assert len(writers) == expected


def test_a_long_queue_takes_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_BYTES", 1)
    rig = Rig(group_commit_count=2)
    rig.source.put(KEY, 0, 9)
    [outcome] = rig.dispatcher.scan(force=True)
    assert (outcome.messages, outcome.status) == (9, DispatchStatus.UPLOADED)


def test_the_guard_holds_back_what_the_tier_needs(rig: Rig) -> None:
    rig.source.put(KEY, 3, 4)
    guard = rig.dispatcher.retention_guard
    assert guard(KEY) is None  # the memory provider never counts
    object.__setattr__(rig.dispatcher, "_is_durable", True)
    assert guard(KEY) == 0
    rig.one()
    assert guard(KEY) == 7
    assert guard(QueueKey("rmq_sys_x", 0)) is None


def test_the_loop_scans_until_it_is_stopped(rig: Rig) -> None:
    rig.source.put(KEY, 0, 3)
    scanned = threading.Event()
    wait = rig.tier.clock.wait

    def waiting(event: threading.Event, timeout_ms: int) -> bool:
        assert timeout_ms == SCAN_MS
        scanned.set()
        event.wait(60)
        return wait(event, timeout_ms)

    patch(rig.tier.clock, wait=waiting)
    rig.dispatcher.start()
    assert scanned.wait(60)
    rig.dispatcher.stop()
    assert rig.offsets() == [0, 1, 2]
    assert rig.source.guard == rig.dispatcher.retention_guard


# One queue among others


def test_a_queue_that_cannot_be_opened_is_in_the_answer_and_stops_no_other(rig: Rig) -> None:
    rig.source.put(KEY, 0, 3)
    rig.source.put(OTHER, 0, 3)
    error = Corrupt("the file of a queue is cut")
    rig.store._broken[OTHER] = error
    outcomes = {outcome.key: outcome for outcome in rig.dispatcher.scan(force=True)}
    assert outcomes[OTHER].status is DispatchStatus.FAILED
    assert outcomes[OTHER].error is error
    assert rig.offsets() == [0, 1, 2]


def test_a_local_queue_that_cannot_be_read_is_in_the_answer_and_stops_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.source.put(KEY, 0, 3)
    rig.source.put(OTHER, 0, 3)
    queue_range = rig.source.queue_range

    def failing(key: QueueKey) -> Any:
        if key == OTHER:
            raise Corrupt("the local file of a queue is cut")
        return queue_range(key)

    monkeypatch.setattr(rig.source, "queue_range", failing)
    outcomes = {outcome.key: outcome for outcome in rig.dispatcher.scan(force=True)}
    assert outcomes[OTHER].status is DispatchStatus.FAILED
    assert rig.offsets() == [0, 1, 2]
