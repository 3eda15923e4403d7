"""Spark partitions from planned ranges: large ranges are cut, small ranges are combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.datasource import InputPartition

from tieredstore.jobs.run import gather_groups
from tieredstore.scan.plan import ScanRange

MOST_PARTITIONS = 10_000
"""Maximum number of partitions. If a read needs more partitions of the requested size, partitions
become larger, because each task costs tens of milliseconds."""


class TieredPartition(InputPartition):
    """Ranges that one task reads in sequence."""

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
    """Build partitions of at most about `partition_bytes` of commit log and `max_messages` each,
    and at least `min_partitions` if there are enough messages."""
    total = sum(one.size_bytes for one in ranges)
    most = max(partition_bytes, -(-total // MOST_PARTITIONS))
    if min_partitions > 1:
        most = max(1, min(most, total // min_partitions))
    pieces = [piece for one in ranges for piece in _cut_range(one, most)]
    if max_messages is None:
        groups = gather_groups(pieces, lambda one: one.size_bytes, most)
    else:
        pieces = [piece for one in pieces for piece in _cut_count(one, max_messages)]
        # Shares of the tighter limit: the sum then respects both limits.
        weight = max_messages * most
        groups = gather_groups(
            pieces, lambda one: max(one.size_bytes * max_messages, one.count * most), weight
        )
    return [TieredPartition(group) for group in groups]


def _cut_range(whole: ScanRange, most_bytes: int) -> list[ScanRange]:
    """Cut a range into pieces with equal numbers of messages, and estimate their bytes."""
    wanted = -(-whole.size_bytes // most_bytes)
    # Planning cut this to about the requested size. A small excess is fine.
    if whole.size_bytes <= most_bytes * 1.1 or whole.count < 2:
        return [whole]
    return _cut_count(whole, max(1, whole.count // wanted))


def _cut_count(whole: ScanRange, step: int) -> list[ScanRange]:
    """Cut a range into pieces of `step` messages."""
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
