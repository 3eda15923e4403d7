"""BlockPlanner: which messages a get brings, for itself and for what comes after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.tier.fetch.flights import Fetch, SingleFlight
from tieredstore.tier.fetch.trail import BLOCK_BYTES, FIRST_SURPLUS, Limits, Trail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.contracts.message_store import GetRequest
    from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache
    from tieredstore.tier.flat.message_file import FlatMessageFile

POP_FETCH_COUNT = 32
"""Messages fetched for a reader that asks for one at a time."""


class BlockPlanner:
    """Plans fetches by what the cache holds, has room for, and is about to get. Thread-safe."""

    def __init__(self, config: StoreConfig, cache: ReadAheadCache, flights: SingleFlight) -> None:
        self._config = config
        self._cache = cache
        self._flights = flights

    def plan_get(self, file: FlatMessageFile, request: GetRequest, maximum: int) -> Fetch:
        """Plan what a get waits for: what it asked for, more for a reader that goes on from block
        to block. Without room in the cache for what one get may answer it is read around."""
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
        if request.message_filter is not None:  # most may be refused: a whole block is looked at
            return Trail(file, key, offset, threshold).plan_first(limits)
        count = request.max_count if request.max_count > 1 else POP_FETCH_COUNT
        return Trail(file, key, offset, count).plan_first(
            limits, surplus=FIRST_SURPLUS, enough_bytes=most_in_memory
        )

    def plan_ahead(self, file: FlatMessageFile, block: Block, maximum: int) -> Iterator[Fetch]:
        """Plan what is to be on its way now that a reader has reached a block. Room in the cache is
        to be set aside for one before the next one is taken."""
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
        """The first offset from `start` on that is neither cached nor on its way."""
        while True:
            end = self._cache.find_end(key, start, file)
            flight = self._flights.find(key, end, file)
            if flight is not None:
                start = flight.fetch.end
            elif self._cache.find_end(key, end, file) == end:  # nor has one landed meanwhile
                return end

    def _find_end(self, key: QueueKey, start: int, maximum: int) -> int:
        """Where a block must end: before what is cached or on its way."""
        # In this order: what lands meanwhile is in the cache before it leaves the flights.
        taken = self._flights.find_next_start(key, start), self._cache.next_start(key, start)
        return min([maximum, *(offset for offset in taken if offset is not None)])
