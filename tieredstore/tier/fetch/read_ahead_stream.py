"""Read-ahead streams: plans for the blocks that a sequential reader needs now and next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.tier.fetch.block_reading import find_fitting
from tieredstore.tier.fetch.in_flight import NO_LIMIT, Fetch, SingleFlight
from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache
from tieredstore.tier.flat.message_file import FlatMessageFile

BLOCKS_AHEAD: Final = 8
"""Maximum number of blocks that are in flight or cached before a reader asks for them."""

BLOCK_BYTES: Final = 4 << 20
"""Approximate maximum size of a block that is fetched for a sequential reader, in commit log bytes.
A larger message is a block of its own."""

FIRST_SURPLUS: Final = 192
"""Number of units after a reader's first block that are read together with this block. They are the
units of the next two blocks."""

UNITS_AHEAD: Final = 1 << 15
"""Maximum number of units after a block that are read together with the block."""

_UNITS_A_MESSAGE: Final = 16
"""Number of units after a block that are read with it, for each message of the next block."""


class Limits(NamedTuple):
    """Limits of a block: number of messages, bytes of commit log, bytes in the cache, and the queue
    offset where the block must end."""

    message_count: int
    size_bytes: int
    room_bytes: int
    end: int


class Trail:
    """Read-ahead stream: the blocks fetched for one sequential reader, or for several readers of
    the same messages. Thread-safe. `start`, `count`: first queue offset and number of messages of
    the first block."""

    def __init__(
        self, file: FlatMessageFile, key: QueueKey, start: int, count: int, reached: int = 0
    ) -> None:
        self._file = file
        self._key = key
        self._lock = threading.Lock()
        self._count = count  # of the block planned last
        self.next_start: int | None = start
        """Queue offset at which the next block begins, or None while this is unknown."""
        self._reached_start = start
        self._reached = reached
        self._ahead: deque[int] = deque()  # starts of blocks that no reader has reached
        self._units: npt.NDArray[np.void] | None = None
        self._units_start = start
        self._is_asking = False

    # Blocks that a reader waits for

    def plan_first(
        self, limits: Limits, *, surplus: int | None = None, enough_bytes: int = NO_LIMIT
    ) -> Fetch:
        """Plan the first block. `surplus`: number of units to read after the block (default: those
        of the next block). `enough_bytes`: the block ends with the message at which this size is
        reached."""
        with self._lock:
            assert self.next_start is not None
            return self._plan_unknown(self.next_start, limits, surplus, enough_bytes)

    def plan_next(self, start: int, limits: Limits) -> Fetch | None:
        """Plan the block that begins at `start`. Returns None if this stream does not continue
        there. The reader then needs another stream."""
        with self._lock:
            if self.next_start != start:
                return None
            self._reach(start)
            known = self._plan_known(limits)
            if known is not None:
                return known
            self._count = min(self._count * 2, limits.message_count)
            return self._plan_unknown(start, limits)

    def fork(self, start: int) -> Trail:
        """Return a new stream for a reader whose next block was evicted or never fetched."""
        return Trail(self._file, self._key, start, self._count, self._reached)

    # Blocks that are fetched ahead

    def reach(self, block: Block) -> None:
        """Record that a reader has reached a block."""
        with self._lock:
            self._reach(block.start)

    def may_run_ahead(self) -> bool:
        """Return whether another block may be fetched before a reader asks for it."""
        return len(self._ahead) < min(2 * self._reached, BLOCKS_AHEAD)

    def plan_ahead(self, start: int, limits: Limits) -> Fetch | None:
        """Plan the next block from known units, starting at `start`. Returns None if its units are
        not known."""
        with self._lock:
            if self.next_start is None or self.next_start > start:
                return None
            self.next_start = start
            if self._is_asking and self._units_end < min(start + self._count, limits.end):
                return None  # more of them are in flight: small blocks do not help
            planned = self._plan_known(limits)
            if planned is not None:
                self._ahead.append(start)
            return planned

    # Fetched

    def settle(self, fetch: Fetch, block: Block, units: npt.NDArray[np.void]) -> None:
        """Record a fetched block and the units that were read with it. `units` begins with the
        first unit of the block, or after the block if its units were known."""
        with self._lock:
            if fetch.units is None:
                self._units_start, self._units = fetch.start, units
                if self.next_start is None:
                    self._count = max(block.end - block.start, 1)
                    self.next_start = block.end
            elif fetch.further is not None:
                self._is_asking = False
                if self._units is not None and self._units_end == fetch.further[0]:
                    self._units = np.concatenate([self._units, units])

    def give_up(self, fetch: Fetch) -> None:
        """Record that a planned block could not be fetched."""
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
        self.next_start = None
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
        """Plan the next block from known units. Returns None if its units are not known."""
        start, units = self.next_start, self._units
        assert start is not None
        skipped = start - self._units_start
        if units is None or not 0 <= skipped < len(units):
            return None
        self._units, self._units_start = units[skipped:], start
        wanted = min(self._count * 2, limits.message_count)
        units = self._units[: min(wanted, limits.end - start)]
        count, weight = find_fitting(units, limits.size_bytes, limits.room_bytes)
        self._count = wanted if count == len(units) else count
        self.next_start = start + count
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
        """Return the first queue offset and the number of units to read ahead with a block. Returns
        None if enough units are known or are already being read."""
        enough = min(self._count * _UNITS_A_MESSAGE, UNITS_AHEAD)
        if self._is_asking or self._units_end - start > enough // 2:
            return None
        self._is_asking = True
        return self._units_end, enough


POP_FETCH_COUNT = 32
"""Number of messages that are fetched for a reader that requests one message at a time."""


class BlockPlanner:
    """Plans fetches from the contents and the free space of the cache. Thread-safe."""

    def __init__(self, config: StoreConfig, cache: ReadAheadCache, flights: SingleFlight) -> None:
        self._config = config
        self._cache = cache
        self._flights = flights

    def plan_get(self, file: FlatMessageFile, request: GetRequest, maximum: int) -> Fetch:
        """Plan the block that a get waits for: the requested messages, or more for a sequential
        reader. If the cache has no space for the answer of one get, the read is not cached."""
        config, key, offset = self._config, request.key, request.offset
        threshold = config.read_ahead_message_count_threshold
        most_bytes = config.read_ahead_message_size_threshold_bytes
        most_in_memory = config.max_transfer_bytes_in_memory
        room_bytes = self._cache.room_bytes() if config.read_ahead_cache_enable else 0
        if room_bytes < most_in_memory:
            return Fetch(
                file,
                key,
                offset,
                min(request.max_count, threshold, maximum - offset),
                size_bytes=most_bytes,
                enough_bytes=min(most_in_memory, request.limit_bytes),
            )
        limits = Limits(
            threshold,
            min(most_bytes, BLOCK_BYTES),
            room_bytes,
            self._find_end(key, offset, maximum),
        )
        before = self._cache.find_before(key, offset, file)
        if before is not None and before.trail is not None:
            planned = before.trail.plan_next(offset, limits)
            return planned or before.trail.fork(offset).plan_first(limits)
        if request.message_filter is not None:  # most may be rejected: read a whole block
            return Trail(file, key, offset, threshold).plan_first(limits)
        count = request.max_count if request.max_count > 1 else POP_FETCH_COUNT
        return Trail(file, key, offset, count).plan_first(
            limits, surplus=FIRST_SURPLUS, enough_bytes=most_in_memory
        )

    def plan_ahead(self, file: FlatMessageFile, block: Block, maximum: int) -> Iterator[Fetch]:
        """Yield the fetches to start when a reader reaches `block`. The caller must reserve cache
        space for each fetch before it requests the next one."""
        config, key, trail = self._config, block.key, block.trail
        if trail is None:
            return
        trail.reach(block)
        while trail.may_run_ahead() and (start := trail.next_start) is not None:
            start = self._skip_taken(file, key, start)
            room_bytes = self._cache.room_bytes()
            if start >= maximum or room_bytes < config.max_transfer_bytes_in_memory:
                return
            limits = Limits(
                config.read_ahead_message_count_threshold,
                min(config.read_ahead_message_size_threshold_bytes, BLOCK_BYTES),
                room_bytes,
                self._find_end(key, start, maximum),
            )
            planned = trail.plan_ahead(start, limits)
            if planned is None:
                return
            yield planned

    def _skip_taken(self, file: FlatMessageFile, key: QueueKey, start: int) -> int:
        """Return the first offset at or after `start` that is neither cached nor in flight."""
        while True:
            end = self._cache.find_end(key, start, file)
            flight = self._flights.find(key, end, file)
            if flight is not None:
                start = flight.fetch.end
            elif self._cache.find_end(key, end, file) == end:  # nor has one landed since
                return end

    def _find_end(self, key: QueueKey, start: int, maximum: int) -> int:
        """Return the queue offset where a block must end because the next block is cached or in
        flight."""
        # In this order, because a block enters the cache before its fetch is removed.
        taken = self._flights.find_next_start(key, start), self._cache.next_start(key, start)
        return min([maximum, *(offset for offset in taken if offset is not None)])
