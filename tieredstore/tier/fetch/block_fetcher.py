"""Brings blocks from the tier into the read-ahead cache: one fetch at a time for an offset,
whoever waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final

from tieredstore.errors import Busy, TieredStoreError
from tieredstore.tier.fetch.block_reading import count_reaching, read_named
from tieredstore.tier.fetch.flights import NO_LIMIT, Fetch, Flight, SingleFlight
from tieredstore.tier.fetch.places import Places
from tieredstore.tier.fetch.read_ahead import Block
from tieredstore.tier.joined_reading import join_readings
from tieredstore.tier.reading import Reading, Steps, Wait, run, time_steps

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.clock import Clock
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.metrics import Metrics
    from tieredstore.tier.fetch.read_ahead import ReadAheadCache
    from tieredstore.tier.flat.message_file import FlatMessageFile

BAD_MESSAGES = "rocketmq_tiered_store_x_bad_messages_total"
READ_ERRORS = "rocketmq_tiered_store_x_read_errors_total"

READS_AROUND: Final = 32
"""Most reads around the cache at a time: each brings what one get may answer."""

SLOW_MS: Final = 5
"""Where what was not at hand took so long, it pays to fetch the next blocks before they are asked
for. What is done with the bytes does not count: nobody would do it sooner."""

_log = logging.getLogger(__name__)


def report_failure(metrics: Metrics, key: QueueKey, offset: int, error: TieredStoreError) -> None:
    """Count and log a read that failed and whose error ends here."""
    kind = type(error).__name__
    metrics.count(READ_ERRORS, topic=key.topic, kind=kind)
    _log.warning("%s/%d: read at %d failed: %s: %s", *key, offset, kind, error)


class BlockFetcher:
    """Thread-safe. Coroutines and threads share fetches; `ahead` runs those ahead of readers, whose
    reads of one step are done side by side in `executor`. A failed fetch is counted and logged, and
    answered with None.
    """

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
        self.flights = SingleFlight()
        self._planning = threading.Lock()  # what is planned is on its way before the next plan
        self._around = Places(READS_AROUND)
        # Bounds what waits in the executor's queue.
        self._pending = threading.BoundedSemaphore(config.max_pending_limit)

    def fetch(
        self, file: FlatMessageFile, key: QueueKey, offset: int, plan: Callable[[], Fetch]
    ) -> Steps[Block | None]:
        """Fetch a block that holds `offset`: the one that is on its way, else what `plan` says."""
        while True:
            with self._planning:
                flight = self.flights.find(key, offset, file)
                if flight is None:
                    block = self._find_landed(file, key, offset)
                    if block is not None:
                        return block
                    fetch = plan()
                    if fetch.keep:
                        flight = self._join(fetch)
            if flight is None:
                return (yield from self._read_around(fetch))
            if flight.lead():
                landed = yield from self._lead(flight)
            else:
                try:
                    landed = yield Wait(flight.wait, flight.wait_async)
                except Busy:
                    return (yield from self._read_around(plan()))
            if isinstance(landed, TieredStoreError):
                return None
            if landed is not None and landed.start <= offset < landed.end:
                return landed

    def _find_landed(self, file: FlatMessageFile, key: QueueKey, offset: int) -> Block | None:
        """A block that has come since the reader looked into the cache: it is there before its
        flight ends."""
        if not self._config.read_ahead_cache_enable:
            return None
        return self._cache.find_before(key, offset + 1, file)

    def fetch_ahead(self, fetches: Iterator[Fetch]) -> None:
        """Fetch into the cache in the background what a reader will want next. Nothing is done
        without an executor for it; then nothing is planned either."""
        if self._ahead is None:
            return
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
            except RuntimeError:  # shut down meanwhile
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
        # Who leads it already is not waited for: it may be a coroutine.
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

    def _read_around(self, fetch: Fetch) -> Steps[Block | None]:
        """Read a block that is not kept: a few at a time, since no cache bounds them."""
        place = yield from self._around.enter()
        try:
            return (yield from self._read(fetch))
        except TieredStoreError:
            return None
        finally:
            place.leave()

    def _read(self, fetch: Fetch) -> Steps[Block]:
        is_pending = False
        try:
            is_pending = yield Wait(lambda: False, self._begin_pending)
            block, waited_ms = yield from time_steps(self._read_block(fetch), self._clock)
        except TieredStoreError as error:
            report_failure(self._metrics, fetch.key, fetch.start, error)
            raise
        finally:
            if is_pending:
                self._pending.release()
        block.was_waited_for = waited_ms >= SLOW_MS
        if block.bad_count:
            self._report_bad(block)
        return block

    async def _begin_pending(self) -> bool:
        if not self._pending.acquire(blocking=False):
            raise Busy(f"{self._config.max_pending_limit} reads of the tier are under way")
        return True

    def _read_block(self, fetch: Fetch) -> Reading[Block]:
        """Read units and messages: two steps, or one where the units are known."""
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
        """The block of known units, and further units, which may fail."""
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
            room_bytes=fetch.room_bytes if fetch.keep else NO_LIMIT,
            check_bodies=self._config.crc_check_enable,
        )

    def _report_bad(self, block: Block) -> None:
        topic, queue_id = block.key
        self._metrics.count(BAD_MESSAGES, block.bad_count, topic=topic, queue_id=queue_id)
        _log.warning(
            "%s/%d: %d of the queue offsets %d to %d have no usable message in the tier",
            topic,
            queue_id,
            block.bad_count,
            block.start,
            block.end - 1,
        )
