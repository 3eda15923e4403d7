"""Our flat files do not have the defects of Java's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    T0,
    TableMetadata,
    Tier,
    as_batch,
    batch,
    bodies,
    commit_log_id,
    consume_queue_id,
    existing,
    fill,
    patch,
    read_messages,
    record,
)
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.contracts.metadata_store import STATUS_DELETED
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
    WriteResult,
)
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import Fault, Faults, FaultyMetadataStore, FaultyProvider
from tieredstore.tier.flat.segments import FlatSegment
from tieredstore.tier.reading import run

HOUR_MS = 3_600_000
SIZE = len(record(0)[0])


@pytest.fixture(params=["posix", "memory", "chunks"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentProvider:
    if request.param == "posix":
        return PosixProvider(tmp_path, "DefaultCluster", fsync=False)
    return MemoryProvider() if request.param == "memory" else chunk_provider()


def small_segments(**settings: Any) -> dict[str, Any]:
    return {
        "commit_log_max_size_bytes": 2 * SIZE,
        "consume_queue_max_size_bytes": 40,
        **settings,
    }


def test_defect_d01_a_message_larger_than_a_segment_gets_its_own() -> None:
    tier = Tier(settings=small_segments())
    file = tier.queue()
    made = [record(0), record(1, body_size=5000), record(2), record(3, body_size=5000)]
    file.append_batch(*as_batch(made))
    assert file.commit()
    assert [len(body) for _, body in bodies(file)] == [20, 5000, 20, 5000]
    assert len(file.commit_log.segments) == 4
    assert [len(body) for _, body in bodies(tier.queue())] == [20, 5000, 20, 5000]


def test_defect_d07_expiry_does_not_spin_on_what_cannot_be_deleted() -> None:
    tier = Tier(settings=small_segments())
    fill(tier.queue(), 0, 6)
    tries = []
    original = tier.provider.open

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        if id == commit_log_id(0):

            def delete() -> None:
                tries.append(id)
                raise Unavailable(f"{id} is stuck")

            patch(segment, delete=delete)
        return segment

    patch(tier.provider, open=opened)
    store = tier.store()
    file = existing(store)
    file.expire(T0 + 4)
    assert len(tries) == 1
    assert [q for q, _ in bodies(file)] == [4, 5]
    assert tier.table.segment_table[commit_log_id(0)].status == STATUS_DELETED
    assert store.sweep_deleted() == 1  # one more try, and then none
    assert len(tries) == 2
    assert [q for q, _ in bodies(tier.queue())] == [4, 5]  # a restart does not bring it back
    patch(tier.provider, open=original)
    assert store.sweep_deleted() == 0
    assert tier.metadata.segment(commit_log_id(0)) is None
    assert commit_log_id(0) not in tier.objects()


@pytest.mark.parametrize("fault", [Fault.TEAR, Fault.LOSE_REPLY, Fault.FAIL])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_defect_d08_a_failed_write_is_never_sent_to_another_place(
    provider: SegmentProvider, fault: Fault, number: int
) -> None:
    """If a write to one file of a queue fails, it is retried on the same file."""
    right = Tier()
    fill(right.queue(), 0, 3)
    fill(right.queue(), 3, 4)

    tier = Tier(provider=FaultyProvider(provider, Faults({number: fault})))
    file = tier.queue()
    failures = 0
    for first, count in ((0, 3), (3, 4)):
        file.append_batch(*batch(first, count))
        for _ in range(2):
            try:
                assert file.commit()
                break
            except Unavailable:
                failures += 1
                assert file.consume_queue_commit_offset <= file.consume_queue_max_offset
    lost_reply_is_seen = fault is not Fault.FAIL and not provider.capabilities.rewritable
    assert failures == (0 if lost_reply_is_seen else 1)
    assert bodies(file) == bodies(right.queue())
    assert tier.objects() == right.objects()
    assert bodies(tier.queue()) == bodies(right.queue())


@pytest.mark.parametrize("fault", [Fault.TEAR, Fault.LOSE_REPLY, Fault.FAIL])
@pytest.mark.parametrize("number", [1, 2])
def test_defect_d08_after_a_rollback_the_same_messages_take_the_same_place(
    provider: SegmentProvider, fault: Fault, number: int
) -> None:
    tier = Tier(provider=FaultyProvider(provider, Faults({number: fault})))
    file = tier.queue()
    try:
        file.append_batch(*batch(0, 5))
        file.commit()
    except Unavailable:
        file.rollback()
    at = file.consume_queue_max_offset
    if at < 5:
        fill(file, at, 3)
    right = Tier()
    fill(right.queue(), 0, 5 if at == 5 else 3)
    assert tier.queue().consume_queue_commit_offset in (3, 5)
    assert bodies(file) == bodies(right.queue())


def test_defect_d10_lower_time_search_finds_the_first_of_equal_times_across_segments() -> None:
    times = [100, 200, 200, 200, 200, 200, 300, 500]
    file = Tier(settings={"consume_queue_max_size_bytes": 40}).queue(10)
    file.append_batch(*as_batch([record(10 + i, timestamp_ms=t) for i, t in enumerate(times)]))
    file.commit()
    assert run(file.offset_by_time(200, BoundaryType.LOWER)) == 11
    assert run(file.offset_by_time(200, BoundaryType.UPPER)) == 15


def test_defect_d10_time_search_touches_nothing_that_expired() -> None:
    tier = Tier(settings={"commit_log_max_size_bytes": 2 * SIZE})
    file = tier.queue()
    fill(file, 0, 8)
    file.expire(T0 + 4)
    assert file.consume_queue.min_offset == 0
    assert file.consume_queue_min_offset == 4
    for wanted in range(10):
        lower = run(file.offset_by_time(T0 + wanted, BoundaryType.LOWER))
        assert lower == min(max(wanted, 4), 8)
        upper = run(file.offset_by_time(T0 + wanted, BoundaryType.UPPER))
        assert upper == min(max(wanted, 4), 7)


def test_defect_d14_store_times_behind_an_ipv6_born_host() -> None:
    file = Tier().queue()
    made = [record(q, host=("2001:db8::1", 9876)) for q in range(3)]
    file.append_batch(*as_batch(made))
    file.commit()
    assert (file.min_store_timestamp_ms, file.max_store_timestamp_ms) == (T0, T0 + 2)
    assert run(file.store_timestamp_at(1)) == T0 + 1
    assert run(file.offset_by_time(T0 + 1, BoundaryType.LOWER)) == 1


def cut_object(tier: Tier, id: SegmentId, length: int) -> None:
    del tier.contents[id][length:]


@pytest.mark.parametrize("cut", [1, 7, 13, 19])
def test_defect_d15_a_torn_consume_queue_tail_is_cut_to_whole_units(cut: int) -> None:
    tier = Tier()
    fill(tier.queue(), 0, 5)
    cut_object(tier, consume_queue_id(0), 100 - cut)
    file = tier.queue()
    assert file.consume_queue_commit_offset == 4
    assert [q for q, _ in bodies(file)] == [0, 1, 2, 3]
    fill(file, 4, 3)
    assert [q for q, _ in bodies(tier.queue())] == list(range(7))
    assert len(tier.objects()[consume_queue_id(0)]) == 140
    assert len(tier.objects()[commit_log_id(0)]) == 7 * SIZE


@pytest.mark.parametrize("cut", [1, SIZE, SIZE + 1, 3 * SIZE])
def test_defect_d15_units_without_their_message_are_cut(cut: int) -> None:
    tier = Tier()
    fill(tier.queue(), 0, 5)
    cut_object(tier, commit_log_id(0), 5 * SIZE - cut)
    left = (5 * SIZE - cut) // SIZE
    file = tier.queue()
    assert file.consume_queue_commit_offset == left
    fill(file, left, 2, body_size=40)
    assert [q for q, _ in bodies(tier.queue())] == list(range(left + 2))


def test_defect_d15_units_of_messages_given_up_never_name_others() -> None:
    """Units of messages that were rolled back never refer to other messages."""
    inner = MemoryProvider()
    # Writes: commit log, consume queue (no reply). Then cut of the latter, commit log, consume
    # queue.
    faulty = FaultyProvider(inner, Faults({2: Fault.LOSE_REPLY, 5: Fault.FAIL}))
    tier = Tier(provider=faulty)
    file = tier.queue()
    for count in (5, 2):
        file.append_batch(*batch(0, count))
        with pytest.raises(Unavailable):
            file.commit()
        file.rollback()
    tier.provider = FaultyProvider(inner, Faults({2: Fault.FAIL}))
    file = existing(tier.store())
    assert file.consume_queue_max_offset == 0
    file.append_batch(*batch(0, 5, body_size=31))
    with pytest.raises(Unavailable):
        file.commit()
    assert bodies(tier.queue()) == []


@pytest.mark.parametrize("field", ["size", "physical_offset"])
def test_defect_d15_a_last_unit_that_is_not_its_messages_is_cut(field: str) -> None:
    tier = Tier()
    fill(tier.queue(), 0, 5)
    units = np.frombuffer(tier.objects()[consume_queue_id(0)], UNIT_DTYPE).copy()
    units[field][3:] -= 1
    tier.contents[consume_queue_id(0)][:] = units.tobytes()
    assert [q for q, _ in bodies(tier.queue())] == [0, 1, 2]


def test_defect_d15_zeros_are_no_units() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 5)
    tier.contents[consume_queue_id(0)] += bytes(40)
    file = tier.queue()
    assert file.consume_queue_commit_offset == 5
    fill(file, 5, 1)
    assert [q for q, _ in bodies(tier.queue())] == list(range(6))


def test_defect_d15_many_bad_units_are_cut_whatever_their_number() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 9000, body_size=1)
    size = len(record(0, body_size=1)[0])
    cut_object(tier, commit_log_id(0), 20 * size)
    file = tier.queue()
    assert 0 < file.consume_queue_commit_offset < 30
    assert len(bodies(file)) == file.consume_queue_commit_offset


def test_defect_d17_an_unexpected_error_leaves_no_lock_taken() -> None:
    tier = Tier()
    file = tier.queue()
    file.append_batch(*batch(0, 2))
    segment = file.commit_log.segments[0].file
    write = segment.write

    def rejected(position: int, buffers: Sequence[Buffer]) -> WriteResult:
        raise RuntimeError("the pool is full")

    patch(segment, write=rejected)
    with pytest.raises(RuntimeError):
        file.commit()
    patch(segment, write=write)
    assert file.commit()
    assert len(bodies(file)) == 2


def test_defect_d18_lost_metadata_never_looks_like_an_empty_tier() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 3)
    before = tier.objects()
    tier.metadata = TableMetadata()
    with pytest.raises(Corrupt, match="`tieredstore restore`"):
        tier.store()
    assert tier.objects() == before


def test_defect_d18_a_queue_that_the_metadata_lost_is_not_written_over() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 3)
    fill(tier.queue(queue_id=1), 0, 3, queue_id=1)
    before = tier.objects()
    for lost in (commit_log_id(0), consume_queue_id(0)):
        del tier.table.segment_table[lost]
    del tier.table.queue_table["TopicA", 0]
    store = tier.store()
    with pytest.raises(Corrupt, match="Rebuild"):
        store.get_or_create("TopicA", 0).init_offset(0)
    assert tier.objects() == before
    fill(existing(store, QueueKey("TopicA", 1)), 3, 1, queue_id=1)


def test_defect_d18_bytes_that_came_after_the_listing_are_not_written_over() -> None:
    tier = Tier()
    store = tier.store()
    tier.provider.open(commit_log_id(0)).write(0, [b"somebody's"])
    with pytest.raises(Corrupt, match="Rebuild"):
        store.get_or_create("TopicA", 0).init_offset(0)
    assert not existing(store).is_initialised
    assert tier.objects()[commit_log_id(0)] == b"somebody's"


def test_defect_d18_a_known_segment_does_not_grow_into_an_unknown_one() -> None:
    tier = Tier()
    file = tier.queue()
    fill(file, 0, 2)
    file.commit_log.roll()
    fill(file, 2, 1)
    del tier.table.segment_table[commit_log_id(2 * SIZE)]
    before = tier.objects()
    with pytest.raises(Corrupt, match="Rebuild"):
        fill(existing(tier.store()), 2, 1)
    assert tier.objects() == before


def test_defect_d18_segments_behind_the_known_ones_are_not_written_over() -> None:
    tier = Tier(settings={"commit_log_max_size_bytes": 2 * SIZE})
    fill(tier.queue(), 0, 3)
    before = tier.objects()
    del tier.table.segment_table[commit_log_id(2 * SIZE)]
    file = existing(tier.store())
    assert [q for q, _ in bodies(file)] == [0, 1]  # known messages can be read
    with pytest.raises(Corrupt, match="Rebuild"):
        file.append_batch(*batch(3, 1))
    assert tier.objects() == before


def test_defect_d19_a_queue_that_expired_whole_goes_on_at_its_offsets() -> None:
    tier = Tier(settings=small_segments())
    file = tier.queue()
    fill(file, 0, 5)
    file.expire(T0 + 1000)
    assert (file.consume_queue_min_offset, file.consume_queue_commit_offset) == (5, 5)
    assert (file.commit_log_min_offset, file.commit_log_commit_offset) == (5 * SIZE, 5 * SIZE)
    assert bodies(file) == []
    assert tier.objects() == {}
    file.expire(T0 + 1000)  # nothing more happens to the active segments
    file = tier.queue()
    assert file.consume_queue_max_offset == 5
    fill(file, 5, 2)
    [first, second] = read_messages(tier.queue(), 5, 9)
    assert (first.physical_offset, second.physical_offset) == (5 * SIZE, 6 * SIZE)


def test_the_active_segment_is_not_deleted_while_it_is_never_written() -> None:
    tier = Tier()
    file = tier.queue(5)
    assert file.expire(2**62) == []
    assert len(file.commit_log.segments) == len(file.consume_queue.segments) == 1


def test_expiry_keeps_a_segment_whose_newest_message_is_as_old_as_the_bound() -> None:
    tier = Tier(settings={"commit_log_max_size_bytes": 2 * SIZE})
    file = tier.queue()
    fill(file, 0, 4)
    assert file.expire(T0 + 1) == []
    assert len(file.expire(T0 + 2)) == 1
    assert file.consume_queue_min_offset == 2


def test_expiry_waits_for_what_is_not_committed() -> None:
    file = Tier().queue()
    fill(file, 0, 2)
    file.append_batch(*batch(2, 2))
    file.expire(2**62)
    assert file.commit()
    assert [q for q, _ in bodies(file)] == [0, 1, 2, 3]


def test_defect_d26_reading_what_expired_gives_nothing_and_no_error() -> None:
    tier = Tier(settings=small_segments())
    file = tier.queue()
    fill(file, 0, 6)
    file.expire(T0 + 4)
    assert len(run(file.read_units(0, 3))) == 0
    assert len(run(file.read_commit_log(0, SIZE))) == 0
    assert run(file.store_timestamp_at(0)) == -1
    assert file.next_valid_offset(0) == 4
    assert len(run(file.read_units(-5, 3))) == 0
    assert len(run(file.read_commit_log(-1, 3))) == 0
    assert len(run(file.read_units(2**40, 3))) == 0


def test_defect_d27_upper_is_the_last_at_or_before() -> None:
    times = [100, 200, 300]
    file = Tier().queue()
    file.append_batch(*as_batch([record(i, timestamp_ms=t) for i, t in enumerate(times)]))
    file.commit()
    found = [run(file.offset_by_time(t, BoundaryType.UPPER)) for t in (50, 150, 250, 350)]
    assert found == [0, 0, 1, 2]


def test_time_search_never_answers_with_an_offset_in_a_hole() -> None:
    file = Tier().queue()
    fill(file, 0, 3)
    file.skip_to(10)
    fill(file, 10, 3)
    assert run(file.offset_by_time(T0 + 5, BoundaryType.LOWER)) == 10
    assert run(file.offset_by_time(T0 + 5, BoundaryType.UPPER)) == 2
    assert run(file.offset_by_time(T0 + 99, BoundaryType.LOWER)) == 13
    assert run(file.offset_by_time(0, BoundaryType.UPPER)) == 0


def test_a_hole_reads_as_nothing_and_expires_with_what_is_in_front_of_it() -> None:
    tier = Tier()
    file = tier.queue()
    fill(file, 0, 3)
    file.skip_to(10)
    assert file.consume_queue_max_offset == 10
    fill(file, 10, 3)
    assert len(run(file.read_units(0, 100))) == 3
    assert len(run(file.read_units(3, 100))) == 0
    assert len(run(file.read_units(10, 100))) == 3
    file.commit_log.roll()
    file.expire(T0 + 5)
    assert file.consume_queue_min_offset == 10
    assert list(file.holes) == []
    assert [q for q, _ in bodies(tier.queue())] == [10, 11, 12]


def test_empty_segments_of_a_crashed_roll_do_not_part_a_hole() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 2)
    for base in (100, 140):  # a crash after the announcement, twice
        tier.metadata.put_segment(
            FlatSegment(MemoryProvider().open(consume_queue_id(base))).metadata(T0)
        )
    file = tier.queue()
    assert list(file.holes) == [(2, 7)]
    fill(file, 7, 1)
    assert [file.next_valid_offset(q) for q in (1, 2, 5, 6, 7)] == [1, 7, 7, 7, 7]
    assert [q for q, _ in bodies(tier.queue())] == [0, 1, 7]


def test_lost_segments_in_the_middle_are_a_hole() -> None:
    tier = Tier(settings={"consume_queue_max_size_bytes": 40})
    fill(tier.queue(), 0, 6)
    tier.provider.open(consume_queue_id(40)).delete()
    file = tier.queue()
    assert list(file.holes) == [(2, 4)]
    assert [q for q, _ in bodies(file)] == [0, 1, 4, 5]


def test_times_are_found_again_when_the_metadata_was_behind() -> None:
    tier = Tier(settings=small_segments())
    fill(tier.queue(), 0, 5)
    for entry in tier.table.segment_table.values():
        entry.size = 0
        entry.begin_timestamp_ms = entry.end_timestamp_ms = 2**63 - 1
    file = tier.queue()
    assert [q for q, _ in bodies(file)] == [0, 1, 2, 3, 4]
    for flat in (file.commit_log, file.consume_queue):
        begins = [segment.begin_ms - T0 for segment in flat.segments]
        ends = [segment.end_ms - T0 for segment in flat.segments]
        assert begins == [0, 2, 4]
        assert all(end >= last for end, last in zip(ends, (1, 3, 4), strict=True))
    assert len(file.expire(T0 + 1)) == 0


def test_a_destroyed_queue_is_gone_and_its_name_can_be_used_again() -> None:
    tier = Tier(settings=small_segments())
    store = tier.store()
    file = store.get_or_create("TopicA", 0)
    file.init_offset(0)
    fill(file, 0, 5)
    store.destroy("TopicA", 0)
    assert tier.objects() == {}
    assert not tier.table.segment_table
    assert store.get("TopicA", 0) is None
    again = tier.queue(7)
    fill(again, 7, 1)
    assert [q for q, _ in bodies(tier.queue())] == [7]


def test_w03_a_name_used_again_never_shows_the_old_messages() -> None:
    tier = Tier()
    faulty = FaultyProvider(tier.provider, Faults({3: Fault.FAIL, 4: Fault.FAIL}))
    inner, tier.provider = tier.provider, faulty
    store = tier.store()
    file = store.get_or_create("TopicA", 0)
    file.init_offset(0)
    fill(file, 0, 5)
    store.destroy("TopicA", 0)  # both deletions fail
    tier.provider = inner
    assert len(tier.objects()) == 2
    assert tier.store().get("TopicA", 0) is None
    assert bodies(tier.queue(0)) == []
    again = tier.queue(0)  # nothing was written yet: the real size must not be the old one
    assert bodies(again) == []
    fill(again, 0, 1, body_size=50)
    assert [len(body) for _, body in bodies(tier.queue())] == [50]


def test_a_bad_queue_is_named_and_the_others_open() -> None:
    tier = Tier()
    fill(tier.queue(), 0, 2)
    fill(tier.queue(queue_id=1), 0, 2, queue_id=1)
    entry = tier.table.segment_table.pop(consume_queue_id(0))
    entry.base_offset = 7
    tier.table.segment_table[entry.id] = entry
    tier.contents[entry.id] = tier.contents.pop(consume_queue_id(0))
    store = tier.store()
    assert [key.queue_id for key in store.broken_queues] == [0]
    assert store.get("TopicA", 0) is None
    with pytest.raises(Corrupt):
        store.get_or_create("TopicA", 0)
    assert len(bodies(existing(store, QueueKey("TopicA", 1)))) == 2


def test_without_a_listing_sizes_are_asked_for() -> None:
    tier = Tier(settings=small_segments())
    fill(tier.queue(), 0, 5)
    file = tier.queue()
    file.recover()
    assert [q for q, _ in bodies(file)] == [0, 1, 2, 3, 4]


def test_reading_back_what_another_writer_put_there_is_fenced() -> None:
    from tieredstore.errors import Fenced

    provider = chunk_provider(owner="one")
    tier = Tier(provider=provider)
    file = tier.queue()
    fill(file, 0, 2)
    other = chunk_provider(provider.client, owner="two")
    other.open(commit_log_id(0)).write(2 * SIZE, [b"x" * 500])
    file.append_batch(*batch(2, 2))
    with pytest.raises(Fenced):
        file.commit()
    assert [q for q, _ in bodies(file)] == [0, 1]


def test_a_lost_reply_that_comes_back_as_fenced_is_success() -> None:
    """A write counts as successful if its retry fails because its own object already exists (faults
    O03 and O04)."""
    from tieredstore.contracts.segment import FencedWrite

    tier = Tier(provider=chunk_provider())
    file = tier.queue()
    file.append_batch(*batch(0, 2))
    segment = file.commit_log.segments[0].file
    write = segment.write

    def replied_late(position: int, buffers: Sequence[Buffer]) -> WriteResult:
        write(position, buffers)
        return FencedWrite(segment.size(), "")

    patch(segment, write=replied_late)
    assert file.commit()
    assert len(bodies(file)) == 2


def test_bytes_of_a_crashed_run_that_differ_are_left_behind_in_a_closed_segment() -> None:
    """If a crashed run left different bytes, the queue continues in a new segment. This provider
    cannot overwrite bytes."""
    tier = Tier(provider=chunk_provider())
    fill(tier.queue(), 0, 2)
    tier.provider.open(commit_log_id(0)).write(2 * SIZE, [b"torn bytes of a crashed run"])
    file = tier.queue()
    fill(file, 2, 3)
    assert [s.base_offset for s in file.commit_log.segments] == [0, 2 * SIZE]
    assert [q for q, _ in bodies(tier.queue())] == [0, 1, 2, 3, 4]


def test_messages_given_up_half_uploaded_make_room_for_others(provider: SegmentProvider) -> None:
    """If the local store deletes messages whose units were not uploaded, the queue continues after
    a hole."""
    tier = Tier(provider=FaultyProvider(provider, Faults({4: Fault.FAIL})))
    file = tier.queue()
    fill(file, 0, 2)
    file.append_batch(*batch(2, 2))
    with pytest.raises(Unavailable):
        file.commit()
    file.rollback()
    file.skip_to(9)
    fill(file, 9, 3)
    assert [q for q, _ in bodies(file)] == [0, 1, 9, 10, 11]
    assert bodies(tier.queue()) == bodies(file)


@pytest.mark.parametrize("known", [0, 2])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
@pytest.mark.parametrize("number", range(1, 5))
def test_making_room_beside_foreign_bytes_loses_nothing_when_it_fails(
    known: int, fault: Fault, number: int
) -> None:
    inner = chunk_provider()
    tier = Tier(provider=inner)
    if known:
        fill(tier.queue(), 0, known)
    tier.queue()
    inner.open(commit_log_id(0)).write(known * SIZE, [b"torn bytes of a crashed run"])
    table = tier.metadata
    faults = Faults({number: fault})
    tier.provider = FaultyProvider(inner, faults)
    tier.metadata = FaultyMetadataStore(table, faults)
    file = tier.store().get("TopicA", 0)
    assert file is not None
    file.append_batch(*batch(known, 3))
    for _ in range(2):
        with contextlib.suppress(Unavailable):
            file.commit()
    assert file.commit()
    tier.provider, tier.metadata = inner, table
    assert [q for q, _ in bodies(file)] == list(range(known + 3))
    assert [q for q, _ in bodies(tier.queue())] == list(range(known + 3))


def test_bytes_of_a_crashed_first_run_that_differ_are_replaced() -> None:
    tier = Tier(provider=chunk_provider())
    tier.queue()
    tier.provider.open(commit_log_id(0)).write(0, [b"torn bytes of a crashed run"])
    fill(tier.queue(), 0, 3)
    assert [q for q, _ in bodies(tier.queue())] == [0, 1, 2]


def test_what_a_failed_write_left_is_not_there_behind_a_hole(provider: SegmentProvider) -> None:
    """Bytes of a failed consume queue write do not become units of the queue after a hole."""
    tier = Tier(provider=FaultyProvider(provider, Faults({4: Fault.LOSE_REPLY})))
    file = tier.queue()
    fill(file, 0, 2)
    file.append_batch(*batch(2, 2))
    try:
        file.commit()
    except Unavailable:
        file.rollback()
        file.skip_to(9)
        fill(file, 9, 2)
        assert [q for q, _ in bodies(tier.queue())] == [0, 1, 9, 10]
        assert len(tier.objects()[consume_queue_id(0)]) == 40
    else:
        assert not provider.capabilities.rewritable


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_segment_that_could_not_be_announced_is_not_there_later(
    fault: Fault, number: int
) -> None:
    """A segment whose registration in the metadata failed does not appear there later."""
    tier = Tier()
    fill(tier.queue(), 0, 2)
    table = tier.table
    tier.metadata = FaultyMetadataStore(table, Faults({number: fault}))
    file = existing(tier.store())
    for skipped in (5, 9):
        with contextlib.suppress(Unavailable):
            file.skip_to(skipped)
    at = file.consume_queue_max_offset
    for _ in range(2):
        try:
            file.append_batch(*batch(at, 3))
            file.commit()
            break
        except Unavailable:
            file.rollback()
    tier.metadata = table
    assert [q for q, _ in bodies(tier.queue())] == [0, 1, at, at + 1, at + 2]
    entries = list(table.segments(type=FileSegmentType.CONSUME_QUEUE))
    assert all(entry.status == 0 for entry in entries)
    bases = [segment.base_offset for segment in file.consume_queue.segments]
    assert [entry.base_offset for entry in entries] == bases


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_REPLY])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_queue_that_could_not_be_announced_may_begin_elsewhere(fault: Fault, number: int) -> None:
    tier = Tier()
    table = tier.table
    tier.metadata = FaultyMetadataStore(table, Faults({number: fault}))
    file = tier.store().get_or_create("TopicA", 0)
    try:
        file.init_offset(3)
        first = 3
    except Unavailable:
        assert not file.is_initialised
        file.init_offset(8)
        first = 8
    file.append_batch(*batch(first, 2))
    with contextlib.suppress(Unavailable):
        file.commit()
    assert file.commit()
    tier.metadata = table
    again = tier.queue()
    assert again.consume_queue_min_offset == first
    assert len(bodies(again)) == 2
    assert len(table.segment_table) == 2
