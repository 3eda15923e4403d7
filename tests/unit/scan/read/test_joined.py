"""Small ranges that are read together give the same rows as separate reads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.tier_builder import BuiltTier, TierBuilder, flip, message, units_of
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.message.encoding import Message
from tieredstore.message.sysflag import COMPRESSED
from tieredstore.scan.arrow.columns import ArrowColumns
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.catalogue import Generation
from tieredstore.scan.plan import ScanRange, plan
from tieredstore.scan.read.batches import BATCH_BYTES, BATCH_ROWS
from tieredstore.scan.read.joined import MOST_BYTES, group_small, read_joined

COLUMNS = tuple(name for name in TYPES if name not in {"body", "body_length"})
DAMAGED = "orders"


@pytest.fixture(params=[False, True], ids=["plain", "checksums"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> BuiltTier:
    """A tier of queues with one segment each. It has topic names of several lengths, IPv6 hosts, a
    compressed body, and a queue whose first messages have expired."""
    builder = TierBuilder(tmp_path, messages_per_segment=100, checksums=request.param)
    builder.queue("a", 0, [message("a", 0, n) for n in range(3)])
    builder.queue(DAMAGED, 0, [message(DAMAGED, 0, n) for n in range(2)], first_offset=7)
    builder.queue(DAMAGED, 3, [message(DAMAGED, 3, n) for n in range(4)])
    v6 = [message("over6", 0, n, born_host=("fe80::1", 9)) for n in range(2)]
    builder.queue("over6", 0, v6)
    packed = Message.create("packed", zlib.compress(b"body " * 99), sys_flag=COMPRESSED)
    builder.queue("packed", 0, [message("packed", 0, 0), packed])
    builder.built.metadata.flush()
    return builder.built


def ranges_of(tier: BuiltTier) -> list[ScanRange]:
    return list(plan(tier.provider, tier.catalogue().queues))


def read_alone(tier: BuiltTier, one: ScanRange) -> pa.Table | None:
    """Return the rows of a range, or None if it is damaged. Each read starts with an empty
    cache."""
    one = replace(one, queue=replace(one.queue, generation=Generation()))
    try:
        return pa.Table.from_batches(arrow_batches(tier.provider, one, COLUMNS))
    except Corrupt:
        return None


def test_joined_rows_are_those_of_each_range(tier: BuiltTier) -> None:
    ranges = ranges_of(tier)
    sound, batch = read_joined(tier.provider, ranges)
    assert sound == [True] * len(ranges)
    assert batch is not None
    assert [(q.path, n) for q, n in batch.owners()] == [(r.queue.path, r.count) for r in ranges]
    alone = pa.concat_tables([read_alone(tier, one) for one in ranges])
    assert pa.Table.from_batches([ArrowColumns(batch).record_batch(COLUMNS)]) == alone


@pytest.mark.parametrize("type_", [FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE])
def test_a_flipped_byte_makes_its_range_unsound_or_changes_nothing_that_alone_would_tell(
    tier: BuiltTier, type_: FileSegmentType
) -> None:
    ranges = ranges_of(tier)
    [number] = [n for n, r in enumerate(ranges) if r.queue.path.endswith(f"/{DAMAGED}/0")]
    [extent] = (
        ranges[number].queue.commit_log
        if type_ is FileSegmentType.COMMIT_LOG
        else ranges[number].queue.consume_queue
    )
    path, found_sound = tier.path(extent.id), 0
    for position in range(path.stat().st_size):
        flip(path, position)
        sound, batch = read_joined(tier.provider, ranges)
        assert [*sound[:number], *sound[number + 1 :]] == [True] * (len(ranges) - 1), position
        alone = read_alone(tier, ranges[number])
        if sound[number]:
            found_sound += 1
            assert alone is not None, position
            assert batch is not None
            first = sum(one.count for one in ranges[:number])
            rows = ArrowColumns(batch).record_batch(COLUMNS).slice(first, ranges[number].count)
            assert pa.Table.from_batches([rows]) == alone, position
        flip(path, position)
    if type_ is FileSegmentType.COMMIT_LOG:
        has_checksums = tier.provider.check_blocks(extent.id).covered_bytes > 0
        assert (found_sound > 0) is not has_checksums


def test_a_segment_that_is_shorter_or_gone_makes_its_range_unsound(tier: BuiltTier) -> None:
    ranges = ranges_of(tier)
    [extent] = ranges[1].queue.commit_log
    path = tier.path(extent.id)
    with path.open("r+b") as file:
        file.truncate(extent.size_bytes - 1)
    assert read_joined(tier.provider, ranges)[0] == [n != 1 for n in range(len(ranges))]
    path.unlink()
    assert read_joined(tier.provider, ranges)[0] == [n != 1 for n in range(len(ranges))]
    assert len(units_of(tier.path(ranges[1].queue.consume_queue[0].id))) == ranges[1].count


def test_none_is_sound_without_units(tier: BuiltTier) -> None:
    lost = [ScanRange(one.queue, 50, 52, 100) for one in ranges_of(tier)]
    assert read_joined(tier.provider, lost) == ([False] * len(lost), None)


def make_ranges(tier: BuiltTier, sizes: list[tuple[int, int]]) -> Iterator[ScanRange]:
    queue = tier.catalogue().queues[0]
    for size_bytes, count in sizes:
        yield ScanRange(queue, 0, count, size_bytes)


def test_neighbours_are_grouped_up_to_a_batch(tier: BuiltTier) -> None:
    half = MOST_BYTES, BATCH_ROWS // 2
    ranges = list(make_ranges(tier, [half, half, half, (MOST_BYTES + 1, 1), half, (0, 9000)]))
    assert [len(group) for group in group_small(ranges)] == [2, 1, 1, 1, 1]
    assert [one for group in group_small(ranges) for one in group] == ranges
    few = list(make_ranges(tier, [(MOST_BYTES, 1)] * 40))
    assert next(len(group) for group in group_small(few)) == BATCH_BYTES // MOST_BYTES
