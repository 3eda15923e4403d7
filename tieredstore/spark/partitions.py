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
    ranges: Sequence[ScanRange], *, partition_bytes: int, min_partitions: int
) -> list[TieredPartition]:
    """Make partitions of at most about `partition_bytes` of commit log each, and at least
    `min_partitions` where there are so many messages."""
    total = sum(one.size_bytes for one in ranges)
    most = max(partition_bytes, -(-total // MOST_PARTITIONS))
    if min_partitions > 1:
        most = max(1, min(most, total // min_partitions))
    pieces = [piece for one in ranges for piece in _cut_range(one, most)]
    return [
        TieredPartition(group) for group in gather_groups(pieces, lambda one: one.size_bytes, most)
    ]


def _cut_range(whole: ScanRange, most_bytes: int) -> list[ScanRange]:
    """Pieces of equal numbers of messages; their bytes are an estimate."""
    wanted = -(-whole.size_bytes // most_bytes)
    # What planning cut is of about the size that was asked for: a little more is no reason.
    if whole.size_bytes <= most_bytes * 1.1 or whole.count < 2:
        return [whole]
    step = max(1, whole.count // wanted)
    return [
        replace(
            whole,
            from_offset=first,
            until_offset=min(first + step, whole.until_offset),
            size_bytes=whole.size_bytes * step // whole.count,
        )
        for first in range(whole.from_offset, whole.until_offset, step)
    ]
