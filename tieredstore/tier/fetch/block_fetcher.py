"""Fetches of blocks from the tier into the read-ahead cache. All callers that wait for the same
offset share one fetch."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import Busy, Corrupt, TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.tier.fetch.block_reading import count_reaching, read_block, read_named
from tieredstore.tier.fetch.in_flight import NO_LIMIT, Fetch, Flight, Places, SingleFlight
from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache
from tieredstore.tier.fetch.read_ahead_stream import BlockPlanner
from tieredstore.tier.fetch.unreadable import FORGET_MS, UnreadablePlaces
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import Reading, Steps, Wait, join_readings, run, time_steps

BAD_MESSAGES = "rocketmq_tiered_store_x_bad_messages_total"
READ_ERRORS = "rocketmq_tiered_store_x_read_errors_total"

READS_AROUND: Final = 32
"""Maximum number of concurrent uncached reads. Each may hold the messages of a whole get."""

SLOW_MS: Final = 5
"""Duration (ms) from which a read of the tier counts as slow. After a slow read, the next blocks
are fetched ahead. Processing time is not included, because fetching ahead does not shorten it."""

_log = logging.getLogger(__name__)


def report_failure(metrics: Metrics, key: QueueKey, offset: int, error: TieredStoreError) -> None:
    """Count and log a failed read whose error the caller does not raise."""
    kind = type(error).__name__
    metrics.count(READ_ERRORS, topic=key.topic, kind=kind)
    _log.warning("%s/%d: read at %d failed: %s: %s", *key, offset, kind, error)


class BlockFetcher:
    """Fetches blocks. Thread-safe. Coroutines and threads that need the same block share one fetch.
    A failed fetch is counted and logged, and its result is None. `ahead`: executor that fetches
    blocks before a reader asks for them. `executor`: runs the concurrent reads of one fetch."""

    def __init__(
        self,
        config: StoreConfig,
        cache: ReadAheadCache,
        clock: Clock,
        metrics: Metrics,
        executor: Executor | None = None,
        ahead: Executor | None = None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._clock = clock
        self._metrics = metrics
        self._executor = executor
        self._ahead = ahead
        self.unreadable = UnreadablePlaces(clock)
        self.flights = SingleFlight()
        self.planner = BlockPlanner(config, cache, self.flights)
        self._planning = threading.Lock()  # a planned fetch is in flight before the next plan
        self._around = Places(READS_AROUND)
        # Bounds the executor's queue.
        self._pending = threading.BoundedSemaphore(config.max_pending_limit)

    def fetch(
        self, file: FlatMessageFile, request: GetRequest, maximum: int
    ) -> Steps[Block | None]:
        """Fetch a block that contains the first message of a get. `maximum`: end of the queue."""
        while True:
            source = self._plan(file, request, maximum)
            if isinstance(source, Block):
                return source
            if isinstance(source, Fetch):
                return (yield from self._read_around(source, request))
            if source.lead():
                landed = yield from self._lead(source)
            else:
                try:
                    landed = yield Wait(source.wait, source.wait_async)
                except Busy:
                    fetch = self.planner.plan_get(file, request, maximum)
                    return (yield from self._read_around(fetch, request))
            if isinstance(landed, Corrupt):
                return (yield from self._read_in_front(file, request))
            if isinstance(landed, TieredStoreError):
                return None
            if landed is not None and landed.start <= request.offset < landed.end:
                return landed

    def _plan(
        self, file: FlatMessageFile, request: GetRequest, maximum: int
    ) -> Block | Flight | Fetch:
        """Choose the source of a block: a fetch in flight, a cached block, or an uncached fetch.
        The cache is checked again, because the block may have arrived since the first lookup."""
        key, offset = request.key, request.offset
        with self._planning:
            flight = self.flights.find(key, offset, file)
            if flight is not None:
                return flight
            if self._config.read_ahead_cache_enable:
                block = self._cache.find_before(key, offset + 1, file)
                if block is not None:
                    return block
            fetch = self.planner.plan_get(file, request, maximum)
            return self._join(fetch) if fetch.room_bytes > 0 else fetch

    def fetch_ahead(self, file: FlatMessageFile, block: Block, maximum: int) -> None:
        """Start background fetches of the blocks that the reader of `block` needs next. No-op
        without the executor `ahead`."""
        if self._ahead is None:
            return
        fetches = self.planner.plan_ahead(file, block, maximum)
        while True:
            with self._planning:
                fetch = next(fetches, None)
                if fetch is None:
                    return
                flight = self._join(fetch)
            if flight.fetch is not fetch:
                continue
            try:
                self._ahead.submit(self._fly, flight)
            except RuntimeError:  # shut down in between
                if flight.lead():
                    self._end(fetch, has_come=False)
                    self.flights.land(flight, None)

    def _join(self, fetch: Fetch) -> Flight:
        self._cache.reserve(fetch.reserved_bytes)
        flight = self.flights.join(fetch)
        if flight.fetch is not fetch:  # another reader came first
            self._end(fetch, has_come=False)
        return flight

    def _fly(self, flight: Flight) -> None:
        # Does not wait for another leader, which may be a coroutine.
        if flight.lead():
            run(self._lead(flight), self._executor)

    def _lead(self, flight: Flight) -> Steps[Block | TieredStoreError | None]:
        fetch = flight.fetch
        landed: Block | TieredStoreError | None = None
        try:
            landed = block = yield from self._read(fetch)
            self._cache.put(block)
        except TieredStoreError as error:
            landed = error
        finally:
            self._end(fetch, has_come=isinstance(landed, Block))
            self.flights.land(flight, landed)
        return landed

    def _end(self, fetch: Fetch, *, has_come: bool) -> None:
        self._cache.reserve(-fetch.reserved_bytes)
        if not has_come and fetch.trail is not None:
            fetch.trail.give_up(fetch)

    def _read_around(self, fetch: Fetch, request: GetRequest) -> Steps[Block | None]:
        """Read a block without caching it. The number of these reads at the same time is limited,
        because the limit of the cache does not bound their memory."""
        place = yield from self._around.enter()
        try:
            return (yield from self._read(fetch))
        except Corrupt:
            pass
        except TieredStoreError:
            return None
        finally:
            place.leave()
        return (yield from self._read_in_front(fetch.file, request))

    def _read_in_front(self, file: FlatMessageFile, request: GetRequest) -> Steps[Block | None]:
        """Read the messages of a get that precede lost bytes, without caching them. Each attempt
        requests half as many messages as the previous one. Returns None if the first message is
        lost."""
        count, damage = request.max_count, Corrupt("")
        while count:
            place = yield from self._around.enter()
            try:
                block = yield from read_block(
                    *(file, request.offset, count, request.limit_bytes),
                    check_bodies=self._config.crc_check_enable,
                )
                self._report_bad(block)
                return block
            except Corrupt as error:
                count //= 2
                damage = error
            except TieredStoreError:
                return None
            finally:
                place.leave()
        self.unreadable.note(request.key, request.offset, damage)
        return None

    def _read(self, fetch: Fetch) -> Steps[Block]:
        is_pending = False
        try:
            is_pending = yield Wait(lambda: False, self._begin_pending)
            block, waited_ms = yield from time_steps(self._read_block(fetch), self._clock)
        except TieredStoreError as error:
            if not self.unreadable.find(fetch.key, fetch.start, FORGET_MS):  # reported once
                report_failure(self._metrics, fetch.key, fetch.start, error)
            raise
        finally:
            if is_pending:
                self._pending.release()
        block.was_waited_for = waited_ms >= SLOW_MS
        self._report_bad(block)
        return block

    async def _begin_pending(self) -> bool:
        if not self._pending.acquire(blocking=False):
            raise Busy(f"{self._config.max_pending_limit} reads of the tier are under way")
        return True

    def _read_block(self, fetch: Fetch) -> Reading[Block]:
        """Read units and messages in two steps, or in one step if the units are known."""
        file, start, units = fetch.file, fetch.start, fetch.units
        if units is None:
            surplus = fetch.further[1] if fetch.further is not None else 0
            further = yield from file.read_units(start, fetch.count + surplus)
            units = further[: fetch.count]
            if fetch.enough_bytes < NO_LIMIT:
                units = units[: count_reaching(units, fetch.enough_bytes, fetch.size_bytes)]
            block = yield from self._read_named(fetch, units)
        elif fetch.further is None:
            further = units[:0]
            block = yield from self._read_named(fetch, units)
        else:
            block, further = yield from self._read_both(fetch, units, fetch.further)
        if fetch.trail is not None:
            block.trail = fetch.trail
            fetch.trail.settle(fetch, block, further)
        return block

    def _read_both(
        self, fetch: Fetch, units: npt.NDArray[np.void], further: tuple[int, int]
    ) -> Reading[tuple[Block, npt.NDArray[np.void]]]:
        """Read the messages of known units, and further units at the same time. The messages are
        returned even if the read of the further units fails."""
        readings: list[Reading[Any]] = [
            self._read_named(fetch, units),
            fetch.file.read_units(*further),
        ]
        block, came = yield from join_readings(readings)
        if isinstance(block, TieredStoreError):
            raise block
        return block, units[:0] if isinstance(came, TieredStoreError) else came

    def _read_named(self, fetch: Fetch, units: npt.NDArray[np.void]) -> Reading[Block]:
        return read_named(
            fetch.file,
            fetch.start,
            units,
            fetch.size_bytes,
            room_bytes=fetch.room_bytes or NO_LIMIT,
            check_bodies=self._config.crc_check_enable,
        )

    def _report_bad(self, block: Block) -> None:
        if not block.bad_count:
            return
        topic, queue_id = block.key
        given = set(block.offsets)
        bad = [offset for offset in range(block.start, block.end) if offset not in given]
        self.unreadable.note_left_out(block.key, bad[0], bad[-1], block.bad_count)
        self._metrics.count(BAD_MESSAGES, block.bad_count, topic=topic, queue_id=queue_id)
        _log.warning(
            "%s/%d: %d of the queue offsets %d to %d have no usable message in the tier",
            topic,
            queue_id,
            block.bad_count,
            block.start,
            block.end - 1,
        )
