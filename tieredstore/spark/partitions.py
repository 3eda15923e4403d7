"""Planned ranges as Spark's partitions: large ones cut, small ones together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from tieredstore.jobs.run import gather_groups
from tieredstore.scan.plan import ScanRange

MOST_PARTITIONS = 10_000
"""Above it, partitions become larger than asked for: a task costs tens of milliseconds."""


class TieredPartition(InputPartition):
    """Ranges that one task reads, one behind the other."""

    def __init__(self, ranges: tuple[ScanRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def partitions_of(
    ranges: Sequence[ScanRange],
    *,
    partition_bytes: int,
    min_partitions: int,
    max_messages: int | None = None,
) -> list[TieredPartition]:
    """Make partitions of at most about `partition_bytes` of commit log and of `max_messages` each,
    and at least `min_partitions` where there are so many messages."""
    total = sum(one.size_bytes for one in ranges)
    most = max(partition_bytes, -(-total // MOST_PARTITIONS))
    if min_partitions > 1:
        most = max(1, min(most, total // min_partitions))
    pieces = [piece for one in ranges for piece in _cut_range(one, most)]
    if max_messages is None:
        groups = gather_groups(pieces, lambda one: one.size_bytes, most)
    else:
        pieces = [piece for one in pieces for piece in _cut_count(one, max_messages)]
        # A share of whichever limit is nearer: both then hold for a sum.
        weight = max_messages * most
        groups = gather_groups(
            pieces, lambda one: max(one.size_bytes * max_messages, one.count * most), weight
        )
    return [TieredPartition(group) for group in groups]


def _cut_range(whole: ScanRange, most_bytes: int) -> list[ScanRange]:
    """Pieces of equal numbers of messages; their bytes are an estimate."""
    wanted = -(-whole.size_bytes // most_bytes)
    # What planning cut is of about the size that was asked for: a little more is no reason.
    if whole.size_bytes <= most_bytes * 1.1 or whole.count < 2:
        return [whole]
    return _cut_count(whole, max(1, whole.count // wanted))


def _cut_count(whole: ScanRange, step: int) -> list[ScanRange]:
    """Pieces of `step` messages."""
    if whole.count <= step:
        return [whole]
    return [
        replace(
            whole,
            from_offset=first,
            until_offset=min(first + step, whole.until_offset),
            size_bytes=whole.size_bytes * step // whole.count,
        )
        for first in range(whole.from_offset, whole.until_offset, step)
    ]
