"""Tests of a queue's flat file: append, commit, read, roll and reopen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.kit.tier.flat import (
    T0,
    Tier,
    as_batch,
    batch,
    bodies,
    fill,
    patch,
    read_messages,
    record,
)
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentId,
    SegmentListing,
    WriteResult,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.tier.reading import run


def test_messages_come_back_with_tiered_physical_offsets_and_nothing_else_changed() -> None:
    file = Tier().queue(100)
    fill(file, 100, 5)
    units, records = batch(100, 5)
    found = read_messages(file, 100, 10)
    assert [message.queue_offset for message in found] == [100, 101, 102, 103, 104]
    at = 0
    for message, size in zip(found, units["size"], strict=True):
        original = bytearray(records[0][at : at + size])
        original[28:36] = at.to_bytes(8, "big")
        assert bytes(message.raw) == bytes(original)
        at += int(size)


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_any_grouping_of_records_gives_the_same_bytes(pieces: int) -> None:
    one, many = Tier(), Tier()
    fill(one.queue(), 0, 7)
    fill(many.queue(), 0, 7, pieces=pieces)
    assert one.objects() == many.objects()


def test_a_buffer_that_can_be_written_to_is_used_as_it_is_and_no_other_changed() -> None:
    tier, made = Tier(), [record(0), record(1)]
    data = b"".join(record for record, _ in made)
    units, _ = as_batch(made)
    file = tier.queue()
    given = bytearray(data)
    batch = file.append_batch(units, [memoryview(data)])
    assert batch.buffer.obj is not data
    assert file.append_batch(units, [memoryview(given)]).buffer.obj is given
    file.commit()
    assert given != data, "the physical offsets of the tier are in it"


def test_offsets_are_those_of_the_queue() -> None:
    file = Tier().queue(100)
    assert file.is_initialised
    assert (file.consume_queue_min_offset, file.consume_queue_commit_offset) == (100, 100)
    file.append_batch(*batch(100, 3))
    assert file.consume_queue_max_offset == 103
    assert file.consume_queue_commit_offset == 100
    assert file.commit()
    assert file.consume_queue_commit_offset == 103
    assert file.commit_log_commit_offset == sum(len(record(q)[0]) for q in (100, 101, 102))


def test_what_is_not_committed_cannot_be_read() -> None:
    file = Tier().queue()
    file.append_batch(*batch(0, 3))
    assert len(run(file.read_units(0, 3))) == 0


def test_append_returns_where_the_messages_are() -> None:
    file = Tier().queue(10)
    fill(file, 10, 2)
    made = file.append_batch(*batch(12, 2))
    size = len(record(10)[0])
    assert made.first_offset == 12
    assert made.offsets.tolist() == [2 * size, 3 * size]
    assert made.store_timestamps.tolist() == [T0 + 12, T0 + 13]


@pytest.mark.parametrize("per_segment", [1, 2, 3])
def test_segments_are_cut_between_messages_and_read_as_one(per_segment: int) -> None:
    size = len(record(0)[0])
    tier = Tier(
        settings={
            "commit_log_max_size_bytes": per_segment * size + size // 2,
            "consume_queue_max_size_bytes": 50,
        }
    )
    file = tier.queue()
    fill(file, 0, 9)
    assert [s.base_offset for s in file.commit_log.segments] == list(
        range(0, 9 * size, per_segment * size)
    )
    assert [s.commit_position for s in file.consume_queue.segments] == [40, 40, 40, 40, 20]
    assert len(run(file.read_units(0, 9))) == 9
    assert len(run(file.read_commit_log(0, 9 * size))) == 9 * size
    assert [q for q, _ in bodies(tier.queue())] == list(range(9))


def test_a_batch_beyond_the_pending_limit_is_committed_in_parts() -> None:
    tier = Tier(settings={"max_group_commit_count": 4})
    file = tier.queue()
    file.append_batch(*batch(0, 11))
    assert file.consume_queue_commit_offset == 8
    assert file.commit()
    assert len(bodies(file)) == 11


def test_units_and_records_that_disagree_are_refused_and_change_nothing() -> None:
    file = Tier().queue()
    units, records = batch(0, 3)
    units["size"][1] += 1
    with pytest.raises(Corrupt, match="3 units from queue offset 0"):
        file.append_batch(units, records)
    units["size"][2] -= 1
    with pytest.raises(Corrupt, match="queue offset 1"):
        file.append_batch(units, records)
    assert not file.has_uncommitted
    assert file.consume_queue_max_offset == 0


def test_append_needs_a_first_offset() -> None:
    file = Tier().store().get_or_create("TopicA", 0)
    assert not file.is_initialised
    with pytest.raises(Invalid):
        file.append_batch(*batch(0, 1))


def test_an_empty_batch_is_nothing() -> None:
    file = Tier().queue()
    units, _ = batch(0, 1)
    assert file.append_batch(units[:0], []).count == 0
    assert file.commit()


def test_reopening_goes_on_where_it_was() -> None:
    tier = Tier()
    fill(tier.queue(5), 5, 4)
    file = tier.queue()
    assert (file.consume_queue_min_offset, file.consume_queue_max_offset) == (5, 9)
    fill(file, 9, 2)
    assert [q for q, _ in bodies(tier.queue())] == list(range(5, 11))


def test_store_times_are_kept_by_segment() -> None:
    file = Tier().queue()
    assert (file.min_store_timestamp_ms, file.max_store_timestamp_ms) == (-1, -1)
    fill(file, 3, 4)
    assert (file.min_store_timestamp_ms, file.max_store_timestamp_ms) == (T0 + 3, T0 + 6)


def test_rollback_forgets_what_is_not_committed() -> None:
    file = Tier().queue()
    fill(file, 0, 2)
    file.append_batch(*batch(2, 3))
    file.rollback()
    assert file.consume_queue_max_offset == 2
    fill(file, 2, 5, body_size=40)
    assert len(bodies(file)) == 7


def test_commit_log_rolls_by_age_and_size_only() -> None:
    tier = Tier(
        settings={
            "commit_log_rolling_interval_hours": 1,
            "commit_log_rolling_minimum_size_bytes": 200,
        }
    )
    file = tier.queue()
    tier.clock.set(T0 + 3_600_000)
    fill(file, 0, 1)
    tier.clock.advance(1)
    assert not file.roll_commit_log_if_due()  # too small
    fill(file, 1, 2)
    tier.clock.set(T0 + 3_600_000)
    assert not file.roll_commit_log_if_due()  # not older than the interval
    tier.clock.advance(1)
    assert file.roll_commit_log_if_due()
    assert len(file.commit_log.segments) == 2
    assert not file.roll_commit_log_if_due()
    fill(file, 3, 1)
    assert len(bodies(tier.queue())) == 4


def test_metadata_announces_each_segment_before_its_first_byte() -> None:
    tier = Tier(settings={"commit_log_max_size_bytes": 300, "consume_queue_max_size_bytes": 60})
    seen = []
    original = tier.provider.open

    def opened(id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        segment = original(id, listing)
        write = segment.write

        def checked(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            seen.append(id)
            assert tier.metadata.segment(id) is not None
            return write(position, buffers)

        patch(segment, write=checked)
        return segment

    patch(tier.provider, open=opened)
    file = tier.queue()
    fill(file, 0, 10)
    assert len(set(seen)) == len(file.commit_log.segments) + len(file.consume_queue.segments)


@pytest.mark.parametrize("boundary", list(BoundaryType))
def test_time_search_finds_the_boundaries(boundary: BoundaryType) -> None:
    times = [40, 50, 50, 50, 60, 60, 70]
    file = Tier(settings={"consume_queue_max_size_bytes": 40}).queue(10)
    file.append_batch(*as_batch([record(10 + i, timestamp_ms=t) for i, t in enumerate(times)]))
    file.commit()
    for wanted in range(35, 80, 5):
        found = run(file.offset_by_time(wanted, boundary))
        if boundary is BoundaryType.LOWER:
            right = 10 + int(np.searchsorted(times, wanted, side="left"))
        else:
            right = max(10 + int(np.searchsorted(times, wanted, side="right")) - 1, 10)
        assert found == right, wanted


def test_time_search_in_an_empty_queue_gives_its_offset() -> None:
    file = Tier().queue(7)
    for boundary in BoundaryType:
        assert run(file.offset_by_time(T0, boundary)) == 7


def test_store_timestamp_of_a_message() -> None:
    file = Tier().queue()
    fill(file, 0, 3)
    assert run(file.store_timestamp_at(1)) == T0 + 1
    assert run(file.store_timestamp_at(3)) == -1
    assert run(file.store_timestamp_at(-1)) == -1
