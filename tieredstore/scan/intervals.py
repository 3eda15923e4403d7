"""Runs of numbers, [from, until): of bytes, or of queue offsets."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def add_interval(intervals: list[Interval], low: int, high: int) -> None:
    """Append [low, high); a run that touches the one before joins it."""
    if intervals and intervals[-1][0] <= low <= intervals[-1][1]:
        intervals[-1] = (intervals[-1][0], max(intervals[-1][1], high))
    else:
        intervals.append((low, high))


def subtract_intervals(low: int, high: int, intervals: Iterable[Interval]) -> list[Interval]:
    """Return what is left of [low, high) without `intervals`."""
    left: list[Interval] = []
    for start, end in sorted(intervals):
        if low >= high:
            break
        if start > low:
            left.append((low, min(start, high)))
        low = max(low, end)
    if low < high:
        left.append((low, high))
    return left
