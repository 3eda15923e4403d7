"""Combines the results of the local store and the tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tieredstore.contracts.message_store import BoundaryType

_NO_END = 2**63 - 1


def find_earliest(*values: int) -> int:
    """Return the smallest known offset or time. Values of -1 are unknown and ignored."""
    return min((value for value in values if value >= 0), default=-1)


@dataclass(frozen=True, slots=True)
class TimeSide:
    """Part of a time search over both stores: the messages [low, high) of a queue in one store.

    `search`: callable that returns an offset in [low, high].
    `time_at`: callable that returns the store time of a message (epoch ms).
    `holes`: ranges [first missing, next existing) of offsets, which `search` skips.
    """

    low: int
    high: int
    search: Callable[[int, BoundaryType], int]
    time_at: Callable[[int], int]
    holes: Sequence[tuple[int, int]] = ()


def offset_by_time(sides: Sequence[TimeSide], timestamp_ms: int, boundary: BoundaryType) -> int:
    """Search all sides by time as if they were one store. LOWER: the first message at or after the
    time, or the end. UPPER: the last message at or before the time, or the first message. Returns
    -1 if no side has messages."""
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
    """Correct the result `found` of one side if it is next to a hole of this side. The right
    message may then be in the hole, and on another side."""
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
    """Return the end of the time range that a key query must search in the tier. Later times need
    only the local store. `local_earliest_ms`: -1 if the local store is empty."""
    return min(end_ms, local_earliest_ms if local_earliest_ms >= 0 else _NO_END)
