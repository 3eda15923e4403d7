"""Planned ranges become partitions. Large ranges are split, small ones are combined, and none is
lost."""

from __future__ import annotations

import pytest

from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.plan import ScanRange
from tieredstore.spark.partitions import MOST_PARTITIONS, TieredPartition, partitions_of

QUEUE = QueueFiles("broker-a", "orders", 0)
Piece = tuple[int, int, int]
"""Planned range of a queue: first offset, end offset, and number of bytes."""


def whole(count: int, size_bytes: int, first: int = 0) -> ScanRange:
    return ScanRange(QUEUE, first, first + count, size_bytes)


def pieces(partitions: list[TieredPartition]) -> list[list[Piece]]:
    return [
        [(one.from_offset, one.until_offset, one.size_bytes) for one in partition.ranges]
        for partition in partitions
    ]


def split(
    *ranges: ScanRange, partition_bytes: int = 100, min_partitions: int = 1
) -> list[list[Piece]]:
    return pieces(
        partitions_of(ranges, partition_bytes=partition_bytes, min_partitions=min_partitions)
    )


def test_a_range_of_the_size_that_was_asked_for_stays_whole() -> None:
    assert split(whole(10, 100)) == [[(0, 10, 100)]]
    # a little more is no reason
    assert split(whole(10, 11), partition_bytes=10) == [[(0, 10, 11)]]


def test_a_larger_one_is_cut_into_pieces_of_equal_numbers_of_messages() -> None:
    assert split(whole(10, 111)) == [[(0, 5, 55)], [(5, 10, 55)]]
    assert split(whole(10, 200)) == [[(0, 5, 100)], [(5, 10, 100)]]
    assert split(whole(10, 300, first=7)) == [
        [(7, 10, 90)],
        [(10, 13, 90)],
        [(13, 16, 90)],
        [(16, 17, 90)],
    ]


def test_a_message_is_never_cut() -> None:
    assert split(whole(1, 1_000)) == [[(0, 1, 1_000)]]
    assert split(whole(2, 1_000)) == [[(0, 1, 500)], [(1, 2, 500)]]
    assert split(whole(3, 10_000)) == [[(n, n + 1, 3333)] for n in range(3)]


def test_small_ranges_are_read_by_one_task() -> None:
    small = [whole(1, 40, first=10 * number) for number in range(5)]
    assert [len(group) for group in split(*small)] == [2, 2, 1]
    assert [len(group) for group in split(*small, partition_bytes=200)] == [5]


@pytest.mark.parametrize(("wanted", "found"), [(1, 1), (2, 2), (4, 4), (10, 10), (1_000, 10)])
def test_there_are_at_least_so_many_partitions_as_wanted_where_there_are_messages(
    wanted: int, found: int
) -> None:
    partitions = split(whole(10, 1_000), partition_bytes=1 << 20, min_partitions=wanted)
    assert len(partitions) >= found
    covered = [n for group in partitions for low, high, _ in group for n in range(low, high)]
    assert covered == list(range(10))


def test_more_partitions_than_bytes_are_wanted_in_vain() -> None:
    assert split(whole(3, 5), min_partitions=10) == [[(n, n + 1, 1)] for n in range(3)]


def test_partitions_grow_before_there_are_too_many() -> None:
    found = split(whole(30_000, 3_000_000), partition_bytes=1)
    assert MOST_PARTITIONS // 2 < len(found) <= MOST_PARTITIONS
    assert found[0] == [(0, 3, 300)]
    assert found[-1][-1][1] == 30_000


def test_nothing_is_no_partition() -> None:
    assert split() == []
    assert split(min_partitions=5) == []
