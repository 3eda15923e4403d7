"""Exact search for the bounds of a time range in a queue. Store times may decrease, because clocks
are set back and brokers fail over. A piece of the queue is excluded without a read if the writer
has recorded its smallest and largest time. Otherwise the head of every message is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tieredstore.scan.extents import QueueReader
from tieredstore.scan.time_search.store_times import StoreTimes, read_times

_AT_ONCE = 1 << 14
"""Number of messages whose times are read in one step."""


class Window(NamedTuple):
    """Store times [since, until) in epoch ms. None means no bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the window has no bound."""
        return self.since_ms is None and self.until_ms is None

    def may_have(self, least_ms: int, most_ms: int) -> bool:
        """Return whether any time in [least_ms, most_ms] is within the window."""
        return (self.since_ms is None or most_ms >= self.since_ms) and (
            self.until_ms is None or least_ms < self.until_ms
        )

    def select(self, found: StoreTimes) -> np.ndarray:
        """Return a mask (bool[n]) of the times that are known and within the window."""
        wanted = found.known.copy()
        if self.since_ms is not None:
            wanted &= found.times >= self.since_ms
        if self.until_ms is not None:
            wanted &= found.times < self.until_ms
        return wanted


class Heads:
    """Reads the store times of messages of a queue, and caches the last read."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._last: tuple[int, int, StoreTimes] | None = None

    def read(self, start: int, count: int) -> StoreTimes:
        """Return the times of messages [start, start + count) of one span. Raises Unavailable."""
        if self._last is None or self._last[:2] != (start, count):
            self._last = start, count, read_times(self._reader, start, count)
        return self._last[2]


class Piece(NamedTuple):
    """Messages [start, end) of one span of units. `times`: recorded smallest and largest store
    time, or None."""

    start: int
    end: int
    times: tuple[int, int] | None = None

    def may_have(self, window: Window) -> bool:
        return self.times is None or window.may_have(*self.times)


def join_times(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    """Combine two pairs of smallest and largest time. Return None if either is unknown."""
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def find_begin(heads: Heads, pieces: Sequence[Piece], low: int, since_ms: int) -> int:
    """Return a queue offset such that all earlier messages are stored before `since_ms`. An
    unreadable message gets the time of the previous one. Raises Unavailable."""
    window, begin = Window(since_ms, None), low
    for piece in pieces:
        if not piece.may_have(window):
            begin = piece.end
            continue
        for start, count in steps(piece.start, piece.end):
            found = heads.read(start, count)
            wanted = window.select(found)
            first = int(np.argmax(wanted)) if wanted.any() else count
            earlier = np.flatnonzero(found.known[:first])
            if len(earlier):
                begin = start + int(earlier[-1]) + 1
            if first < count:
                return begin
    return begin


def find_end(heads: Heads, pieces: Sequence[Piece], high: int, until_ms: int) -> int:
    """Return a queue offset such that all messages from there on are stored at or after `until_ms`.
    An unreadable message gets the time of the next one. Raises Unavailable."""
    window, end = Window(None, until_ms), high
    for piece in reversed(pieces):
        if not piece.may_have(window):
            end = piece.start
            continue
        for start, count in reversed(list(steps(piece.start, piece.end))):
            found = heads.read(start, count)
            wanted = np.flatnonzero(window.select(found))
            behind = int(wanted[-1]) + 1 if len(wanted) else 0
            later = np.flatnonzero(found.known[behind:])
            if len(later):
                end = start + behind + int(later[0])
            if behind:
                return end
    return end


def find_first_within(heads: Heads, pieces: Iterable[Piece], window: Window) -> int | None:
    """Return the queue offset of the first message stored within a window, or None. Unreadable
    messages are skipped. Raises Unavailable."""
    for piece in pieces:
        if not piece.may_have(window):
            continue
        for start, count in steps(piece.start, piece.end):
            wanted = window.select(heads.read(start, count))
            if wanted.any():
                return start + int(np.argmax(wanted))
    return None


def steps(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Divide messages [start, end) into reads. Yield the first message and number of messages of
    each."""
    for at in range(start, end, _AT_ONCE):
        yield at, min(_AT_ONCE, end - at)
