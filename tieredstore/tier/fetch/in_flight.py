"""Fetches in flight, so that no offset is fetched twice at the same time, and slots for uncached
reads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.errors import Busy, TieredStoreError
from tieredstore.tier.reading import Steps, Wait

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.tier.fetch.read_ahead import Block
    from tieredstore.tier.fetch.read_ahead_stream import Trail
    from tieredstore.tier.flat.message_file import FlatMessageFile

Landed: TypeAlias = "Block | TieredStoreError | None"
NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Fetch:
    """Block to fetch: up to `count` messages of `file` from `start`.

    `size_bytes`: maximum number of commit log bytes from the first to the last message.
    `enough_bytes`: the block ends with the message at which this size is reached.
    `room_bytes`: maximum size in the cache, 0 for an uncached block.
    `reserved_bytes`: space reserved for the block in the cache.
    `trail`: read-ahead stream of the block.
    `units`: units of the messages, or None if they must be read first.
    `further`: first queue offset and number of the units to read ahead in the same request.
    """

    file: FlatMessageFile
    key: QueueKey
    start: int
    count: int
    size_bytes: int
    enough_bytes: int = NO_LIMIT
    room_bytes: int = 0
    reserved_bytes: int = 0
    trail: Trail | None = None
    units: npt.NDArray[np.void] | None = None
    further: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.start + self.count


class Flight:
    """Planned fetch of [start, end). A caller that needs part of the range waits for the fetch, or
    becomes its leader if it has not begun. The leader runs the fetch. The result is the block, the
    error of the backend, or None if the leader gave up. After None, each waiting caller fetches the
    block itself."""

    __slots__ = ("_landed", "_landing", "_lock", "fetch", "leader_thread")

    def __init__(self, fetch: Fetch, lock: threading.Lock) -> None:
        self.fetch = fetch
        self.leader_thread: int | None = None
        self._lock = lock
        self._landed: tuple[Landed] | None = None
        self._landing: Future[Landed] | None = None  # most fetches have no waiting caller

    def lead(self) -> bool:
        """Become the leader of the fetch. The leader must run the fetch and call `land`. Returns
        False if the fetch already has a leader."""
        with self._lock:
            if self.leader_thread is not None:
                return False
            self.leader_thread = threading.get_ident()
            return True

    @property
    def has_landed(self) -> bool:
        return self._landed is not None

    def land(self, landed: Landed) -> None:
        """End the fetch with its result. Called once, by the leader."""
        with self._lock:
            self._landed = (landed,)
            landing = self._landing
        if landing is not None:
            landing.set_result(landed)

    def _find_landing(self) -> Future[Landed]:
        with self._lock:
            if self._landing is None:
                self._landing = Future()
                if self._landed is not None:
                    self._landing.set_result(self._landed[0])
            return self._landing

    def wait(self) -> Landed:
        """Wait for the result. Raises Busy if the leader is a coroutine of this thread, because
        that coroutine cannot continue while this call blocks."""
        if self.leader_thread == threading.get_ident():
            raise Busy("a coroutine of this thread is fetching")
        return self._find_landing().result()

    async def wait_async(self) -> Landed:
        """Wait for the result in a coroutine."""
        # Shielded: a reader that gives up must not cancel the flight of the others.
        return await asyncio.shield(asyncio.wrap_future(self._find_landing()))


class SingleFlight:
    """Fetches in flight. No two fetches contain the same offset of a queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[QueueKey, list[Flight]] = {}

    def find(self, key: QueueKey, offset: int, owner: object) -> Flight | None:
        """Return the fetch in flight that contains `offset`. `owner`: the queue object. A recreated
        queue has a different object."""
        with self._lock:
            return self._find(key, offset, owner)

    def join(self, fetch: Fetch) -> Flight:
        """Return the fetch in flight that contains the first message of `fetch`, or add a new
        one."""
        with self._lock:
            found = self._find(fetch.key, fetch.start, fetch.file)
            if found is None:
                found = Flight(fetch, self._lock)
                self._flights.setdefault(fetch.key, []).append(found)
            return found

    def land(self, flight: Flight, landed: Landed) -> None:
        """End an in-flight fetch."""
        key = flight.fetch.key
        with self._lock:
            flights = self._flights[key]
            flights.remove(flight)
            if not flights:
                del self._flights[key]
        flight.land(landed)

    def find_next_start(self, key: QueueKey, offset: int) -> int | None:
        """Return the start of the first fetch in flight after `offset`."""
        with self._lock:
            starts = (flight.fetch.start for flight in self._flights.get(key, ()))
            return min((start for start in starts if start > offset), default=None)

    def _find(self, key: QueueKey, offset: int, owner: object) -> Flight | None:
        for flight in self._flights.get(key, ()):
            fetch = flight.fetch
            if fetch.start <= offset < fetch.end and fetch.file is owner:
                return flight
        return None


class Places:
    """Limited number of slots. Callers wait for a free slot in order of arrival. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def enter(self) -> Steps[Place]:
        """Wait for a slot. The caller must call `leave` on the result. A blocking call in the
        thread of an event loop does not wait, because coroutines of that loop may hold the
        slots."""
        place = Place(self)
        with self._lock:
            if self._free:
                self._free -= 1
                place.turn.set_result(None)
            else:
                self._waiting.append(place.turn)
        try:
            if not place.turn.done():
                yield Wait(place.wait, place.wait_async)
        except BaseException:
            place.leave()
            raise
        return place

    def give_back(self) -> None:
        """Give a slot to the next waiting caller."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1


class Place:
    """Slot that one caller holds or waits for."""

    __slots__ = ("_places", "turn")

    def __init__(self, places: Places) -> None:
        self._places = places
        self.turn: Future[None] = Future()

    def leave(self) -> None:
        """Release the slot, or stop waiting."""
        if not self.turn.cancel():
            self._places.give_back()

    def wait(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.turn.result()

    async def wait_async(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self.turn))
