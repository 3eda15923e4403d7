"""Trails: what is fetched for a reader that goes on and on, and how far ahead of it.

A reader of which nothing is known gets what it asked for. Only one that begins where a cached block
ends is taken for a sequential one: each block is planned twice as large as the one before, up to
what one read of the backend may bring, and with each block that it reaches two more may be on their
way before it asks. The units of what follows come along with the messages, so a block costs one
read, and its end is known before it is there.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tieredstore.tier.fetch.block_reading import find_fitting
from tieredstore.tier.fetch.flights import NO_LIMIT, Fetch

if TYPE_CHECKING:
    import numpy.typing as npt

    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.tier.fetch.read_ahead import Block
    from tieredstore.tier.flat.message_file import FlatMessageFile

BLOCKS_AHEAD: Final = 8
"""Most blocks that are on their way or at hand before a reader asks for them."""

BLOCK_BYTES: Final = 4 << 20
"""About what a block of a sequential reader spans at most; a larger message is a block."""

FIRST_SURPLUS: Final = 192
"""Units behind its own that a first block brings along: those of the next two blocks of 32."""

UNITS_AHEAD: Final = 1 << 15
"""Most units that come along with a block."""

_UNITS_A_MESSAGE: Final = 16
"""Units that come along for each message that the next block is to have."""


class Limits(NamedTuple):
    """What a block may be at most: messages, bytes of commit log, weight in the cache; and the
    queue offset at which it must end."""

    message_count: int
    size_bytes: int
    room_bytes: int
    end: int


class Trail:
    """The blocks of one sequential reader, or of several that follow one another. Thread-safe.

    start, count: of its first block.
    """

    def __init__(
        self, file: FlatMessageFile, key: QueueKey, start: int, count: int, reached: int = 0
    ) -> None:
        self._file = file
        self._key = key
        self._lock = threading.Lock()
        self._count = count  # of the block planned last
        self._next_start: int | None = start  # of the next one; None while that is not known
        self._reached_start = start
        self._reached = reached
        self._ahead: deque[int] = deque()  # starts of blocks that no reader has reached
        self._units: npt.NDArray[np.void] | None = None
        self._units_start = start
        self._is_asking = False

    # What a reader waits for

    def plan_first(
        self, limits: Limits, *, surplus: int | None = None, enough_bytes: int = NO_LIMIT
    ) -> Fetch:
        """Plan the first block. surplus: units behind its own that come along (default: those of
        the next block); enough_bytes: it ends with the message that reaches so many."""
        with self._lock:
            assert self._next_start is not None
            return self._plan_unknown(self._next_start, limits, surplus, enough_bytes)

    def plan_next(self, start: int, limits: Limits) -> Fetch | None:
        """Plan the block that is to begin at `start`; None when the trail does not go on there: the
        reader needs another one."""
        with self._lock:
            if self._next_start != start:
                return None
            self._reach(start)
            known = self._plan_known(limits)
            if known is not None:
                return known
            self._count = min(self._count * 2, limits.message_count)
            return self._plan_unknown(start, limits)

    def fork(self, start: int) -> Trail:
        """Begin another one for a reader of this one whose next block went, or never came."""
        return Trail(self._file, self._key, start, self._count, self._reached)

    # What is fetched before it is asked for

    @property
    def next_start(self) -> int | None:
        """Where the next block is to begin; None while that is not known."""
        return self._next_start

    def reach(self, block: Block) -> None:
        """Note that a reader has reached a block."""
        with self._lock:
            self._reach(block.start)

    def may_run_ahead(self) -> bool:
        """Tell whether another block may be on its way before it is asked for."""
        return len(self._ahead) < min(2 * self._reached, BLOCKS_AHEAD)

    def plan_ahead(self, start: int, limits: Limits) -> Fetch | None:
        """Plan the next block, to begin at `start`, as far as units are known; None when none
        are."""
        with self._lock:
            if self._next_start is None or self._next_start > start:
                return None
            self._next_start = start
            if self._is_asking and self._units_end < min(start + self._count, limits.end):
                return None  # more of them are on their way: small blocks help nobody
            planned = self._plan_known(limits)
            if planned is not None:
                self._ahead.append(start)
            return planned

    # What came

    def settle(self, fetch: Fetch, block: Block, units: npt.NDArray[np.void]) -> None:
        """Take in a block that came, and the units that came for it: all from its start on, or
        those that were to come along."""
        with self._lock:
            if fetch.units is None:
                self._units_start, self._units = fetch.start, units
                if self._next_start is None:
                    self._count = max(block.end - block.start, 1)
                    self._next_start = block.end
            elif fetch.further is not None:
                self._is_asking = False
                if self._units is not None and self._units_end == fetch.further[0]:
                    self._units = np.concatenate([self._units, units])

    def give_up(self, fetch: Fetch) -> None:
        """Note that a block did not come."""
        with self._lock:
            if fetch.further is not None:
                self._is_asking = False

    def _reach(self, start: int) -> None:
        if start > self._reached_start:
            self._reached_start = start
            self._reached += 1
            while self._ahead and self._ahead[0] <= start:
                self._ahead.popleft()

    def _plan_unknown(
        self,
        start: int,
        limits: Limits,
        surplus: int | None = None,
        enough_bytes: int = NO_LIMIT,
    ) -> Fetch:
        self._next_start = None
        count = min(self._count, limits.message_count, limits.end - start)
        return Fetch(
            self._file,
            self._key,
            start,
            count,
            size_bytes=limits.size_bytes,
            enough_bytes=enough_bytes,
            room_bytes=limits.room_bytes,
            trail=self,
            further=(start + count, 2 * self._count if surplus is None else surplus),
        )

    def _plan_known(self, limits: Limits) -> Fetch | None:
        """The next block, from the units that are known; None when none are."""
        start, units = self._next_start, self._units
        assert start is not None
        skipped = start - self._units_start
        if units is None or not 0 <= skipped < len(units):
            return None
        self._units, self._units_start = units[skipped:], start
        wanted = min(self._count * 2, limits.message_count)
        units = self._units[: min(wanted, limits.end - start)]
        count, weight = find_fitting(units, limits.size_bytes, limits.room_bytes)
        self._count = wanted if count == len(units) else count
        self._next_start = start + count
        return Fetch(
            self._file,
            self._key,
            start,
            count,
            size_bytes=limits.size_bytes,
            room_bytes=limits.room_bytes,
            reserved_bytes=max(0, min(weight, limits.room_bytes)),
            trail=self,
            units=units[:count],
            further=self._ask_for_units(start + count),
        )

    @property
    def _units_end(self) -> int:
        return self._units_start + (len(self._units) if self._units is not None else 0)

    def _ask_for_units(self, start: int) -> tuple[int, int] | None:
        """The offset and count of units that are to come along with a block; None while there are
        enough, or others are on their way."""
        enough = min(self._count * _UNITS_A_MESSAGE, UNITS_AHEAD)
        if self._is_asking or self._units_end - start > enough // 2:
            return None
        self._is_asking = True
        return self._units_end, enough
