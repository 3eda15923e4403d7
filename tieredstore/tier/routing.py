"""Which side answers a read, local store or tier, and how the answers of both become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tieredstore.config import StorageLevel
from tieredstore.contracts.message_store import BoundaryType

if TYPE_CHECKING:
    from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey

_NO_END = 2**63 - 1


class TieredQueue(Protocol):
    """What routing asks of a queue in the tier."""

    @property
    def consume_queue_commit_offset(self) -> int: ...


def reads_tier(
    level: StorageLevel,
    source: DispatchSource,
    queue: TieredQueue | None,
    key: QueueKey,
    offset: int,
    count: int = 1,
) -> bool:
    """Tell whether `tieredStorageLevel` sends a read of `count` messages from `offset` to the tier.

    queue: the queue in the tier, None when the tier does not have it.
    """
    if level is StorageLevel.FORCE:
        return True
    if level is StorageLevel.DISABLE or queue is None:
        return False
    if offset >= queue.consume_queue_commit_offset:
        return False
    if not source.is_in_store(key, offset):
        return True
    return level is StorageLevel.NOT_IN_MEM and not source.is_in_memory(key, offset, count)


def find_earliest(*values: int) -> int:
    """Return the smallest of the offsets or times that are known; -1 (unknown) never wins."""
    return min((value for value in values if value >= 0), default=-1)


@dataclass(frozen=True, slots=True)
class TimeSide:
    """One store's messages of a queue, queue offsets [low, high), searchable by time.

    search: answers inside [low, high], clamped; time_at: store time of a message, epoch ms;
    holes: [first missing, next present) offsets, which `search` passes over.
    """

    low: int
    high: int
    search: Callable[[int, BoundaryType], int]
    time_at: Callable[[int], int]
    holes: Sequence[tuple[int, int]] = ()


def offset_by_time(sides: Sequence[TimeSide], timestamp_ms: int, boundary: BoundaryType) -> int:
    """Search by time over all sides as if they were one store.

    LOWER: the first message at or after the time, else the end. UPPER: the last message at or
    before it, else the first message. -1 when no side has messages.
    """
    sides = [side for side in sides if side.low < side.high]
    if not sides:
        return -1
    if boundary is BoundaryType.LOWER:
        for side in sorted(sides, key=lambda side: side.low):
            found = side.search(timestamp_ms, boundary)
            if found < side.high:
                return _look_into_holes(side, sides, found, timestamp_ms, boundary)
        return max(side.high for side in sides)
    for side in sorted(sides, key=lambda side: side.high, reverse=True):
        found = side.search(timestamp_ms, boundary)
        if found > side.low or side.time_at(side.low) <= timestamp_ms:
            return _look_into_holes(side, sides, found, timestamp_ms, boundary)
    return min(side.low for side in sides)


def _look_into_holes(
    side: TimeSide,
    sides: Sequence[TimeSide],
    found: int,
    timestamp_ms: int,
    boundary: BoundaryType,
) -> int:
    """What another side has in the hole next to an answer, when that answers the question."""
    is_lower = boundary is BoundaryType.LOWER
    for begin, end in side.holes:
        if found != (end if is_lower else begin - 1):
            continue
        for other in sides:
            if begin < other.high and other.low < end:
                inside = other.search(timestamp_ms, boundary)
                if begin <= inside < min(end, other.high) and (
                    is_lower or inside > other.low or other.time_at(inside) <= timestamp_ms
                ):
                    return inside
    return found


def tier_query_end_ms(end_ms: int, local_earliest_ms: int) -> int:
    """Find the last store time that a key query must ask the tier for: what is older than
    everything local, and never beyond what was asked. local_earliest_ms: -1 when the local store is
    empty."""
    return min(end_ms, local_earliest_ms if local_earliest_ms >= 0 else _NO_END)
