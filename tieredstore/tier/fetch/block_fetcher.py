"""Brings blocks from the tier into the read-ahead cache: one fetch at a time for an offset,
whoever waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tieredstore.errors import Busy, TieredStoreError
from tieredstore.tier.fetch.block_reading import read_block
from tieredstore.tier.reading import Reading, Steps, Wait, run

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.metrics import Metrics
    from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache
    from tieredstore.tier.flat.message_file import FlatMessageFile

BAD_MESSAGES = "rocketmq_tiered_store_x_bad_messages_total"
READ_ERRORS = "rocketmq_tiered_store_x_read_errors_total"

_NO_LIMIT = 2**63 - 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A block that a get needs: up to `count` messages of `file` from `start` on.

    room_bytes: most that the block may weigh in the cache; 0 when it is not to be kept there.
    """

    file: FlatMessageFile
    key: QueueKey
    start: int
    count: int
    room_bytes: int

    @property
    def keep(self) -> bool:
        return self.room_bytes > 0


class Flight:
    """A fetch that is under way, planned to bring [start, end); who wants a part of it waits.

    `landed` completes with the block, with the error that the backend gave, or with None when the
    leader gave up without an answer: those who waited then fetch for themselves.
    """

    __slots__ = ("end", "landed", "leader_thread", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.leader_thread = threading.get_ident()
        self.landed: Future[Block | TieredStoreError | None] = Future()

    def wait(self) -> Block | TieredStoreError | None:
        """Wait for what lands. Raises Busy in the thread of the leader: it is a coroutine there,
        which goes on only when this call returns."""
        if self.leader_thread == threading.get_ident():
            raise Busy("a coroutine of this thread is fetching")
        return self.landed.result()

    async def wait_async(self) -> Block | TieredStoreError | None:
        """Wait for what lands, in a coroutine."""
        # Shielded: a reader that gives up must not cancel the flight of the others.
        return await asyncio.shield(asyncio.wrap_future(self.landed))


class SingleFlight:
    """At most one fetch of a queue offset at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[QueueKey, list[Flight]] = {}

    def join(self, key: QueueKey, start: int, end: int) -> tuple[Flight, bool]:
        """Join the flight that brings `start`. Returns it, and whether the caller leads it: then
        the caller must `land` it."""
        with self._lock:
            flights = self._flights.setdefault(key, [])
            for flight in flights:
                if flight.start <= start < flight.end:
                    return flight, False
            flight = Flight(start, end)
            flights.append(flight)
            return flight, True

    def land(self, key: QueueKey, flight: Flight, landed: Block | TieredStoreError | None) -> None:
        """End a flight."""
        with self._lock:
            flights = self._flights[key]
            flights.remove(flight)
            if not flights:
                del self._flights[key]
        flight.landed.set_result(landed)


def report_failure(metrics: Metrics, key: QueueKey, offset: int, error: TieredStoreError) -> None:
    """Count and log a read that failed and whose error ends here."""
    kind = type(error).__name__
    metrics.count(READ_ERRORS, topic=key.topic, kind=kind)
    _log.warning("%s/%d: read at %d failed: %s: %s", *key, offset, kind, error)


class BlockFetcher:
    """Thread-safe. Coroutines and threads share fetches; `executor` runs those ahead of readers. A
    failed fetch is counted and logged, and answered with None.
    """

    def __init__(
        self,
        config: StoreConfig,
        cache: ReadAheadCache,
        metrics: Metrics,
        executor: Executor | None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._metrics = metrics
        self._executor = executor
        self._flights = SingleFlight()
        self._ahead: set[tuple[QueueKey, int]] = set()
        # Bounds what waits in the executor's queue.
        self._pending = threading.BoundedSemaphore(config.max_pending_limit)

    def fetch(self, fetch: Fetch) -> Steps[Block | None]:
        """Fetch a block that holds `fetch.start`."""
        while True:
            flight, leads = self._join(fetch)
            if flight is None or leads:
                return (yield from self._lead(fetch, flight))
            try:
                landed = yield Wait(flight.wait, flight.wait_async)
            except Busy:
                return (yield from self._lead(fetch, None))
            if isinstance(landed, TieredStoreError):
                return None
            if landed is not None and _serves(landed, fetch):
                return cast("Block", landed)

    def fetch_ahead(self, fetch: Fetch) -> None:
        """Fetch into the cache in the background what a reader will want next, once. Nothing is
        done without an executor."""
        place = (fetch.key, fetch.start)
        if self._executor is None or not fetch.keep or place in self._ahead:
            return
        self._ahead.add(place)

        def finish_fetch() -> None:
            try:
                flight, leads = self._join(fetch)
                # Who is under way already is not waited for: it may be a coroutine, whose reads
                # wait in the executor behind this.
                if leads:
                    run(self._lead(fetch, flight))
            finally:
                self._ahead.discard(place)

        try:
            self._executor.submit(finish_fetch)
        except RuntimeError:  # shut down meanwhile
            self._ahead.discard(place)

    def _join(self, fetch: Fetch) -> tuple[Flight | None, bool]:
        if not fetch.keep:
            return None, True
        return self._flights.join(fetch.key, fetch.start, fetch.start + fetch.count)

    def _lead(self, fetch: Fetch, flight: Flight | None) -> Steps[Block | None]:
        landed: Block | TieredStoreError | None = None
        is_pending = False
        try:
            is_pending = yield Wait(lambda: False, self._begin_pending)
            landed = self._keep_fetched(fetch, (yield from self._read_block(fetch)))
            return landed
        except TieredStoreError as error:
            landed = error
            report_failure(self._metrics, fetch.key, fetch.start, error)
            return None
        finally:
            if is_pending:
                self._pending.release()
            self._land(fetch, flight, landed)

    async def _begin_pending(self) -> bool:
        if not self._pending.acquire(blocking=False):
            raise Busy(f"{self._config.max_pending_limit} reads of the tier are under way")
        return True

    def _land(
        self, fetch: Fetch, flight: Flight | None, landed: Block | TieredStoreError | None
    ) -> None:
        if flight is not None:
            self._flights.land(fetch.key, flight, landed)

    def _read_block(self, fetch: Fetch) -> Reading[Block]:
        return read_block(
            fetch.file,
            fetch.start,
            fetch.count,
            self._config.read_ahead_message_size_threshold_bytes,
            room_bytes=fetch.room_bytes if fetch.keep else _NO_LIMIT,
            check_bodies=self._config.crc_check_enable,
        )

    def _keep_fetched(self, fetch: Fetch, block: Block) -> Block:
        if fetch.keep:
            self._cache.put(block)
        if block.bad_count:
            topic, queue_id = fetch.key
            self._metrics.count(BAD_MESSAGES, block.bad_count, topic=topic, queue_id=queue_id)
            _log.warning(
                "%s/%d: %d of the queue offsets %d to %d have no usable message in the tier",
                topic,
                queue_id,
                block.bad_count,
                block.start,
                block.end - 1,
            )
        return block


def _serves(block: Block, fetch: Fetch) -> bool:
    return block.owner is fetch.file and block.start <= fetch.start < block.end
