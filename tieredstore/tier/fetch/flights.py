"""Flights: fetches that are under way or about to begin, so that no offset is fetched twice at a
time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.errors import Busy, TieredStoreError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.tier.fetch.read_ahead import Block
    from tieredstore.tier.fetch.trail import Trail
    from tieredstore.tier.flat.message_file import FlatMessageFile


Landed: TypeAlias = "Block | TieredStoreError | None"
NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Fetch:
    """A block that is wanted: up to `count` messages of `file` from `start` on.

    size_bytes: most of the commit log that it may span; enough_bytes: it ends with the message that
    reaches so many; room_bytes: most that it may weigh in the cache, 0 when it is not to be kept
    there; reserved_bytes: what of the cache is set aside for it. trail: the one that it belongs to.
    units: those of its messages, None where they must be read first; further: queue offset and
    count of units that come along.
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

    @property
    def keep(self) -> bool:
        return self.room_bytes > 0


class Flight:
    """A fetch that is planned to bring [start, end); who wants a part of it waits, or leads it
    where nobody has begun.

    It lands with the block, with the error that the backend gave, or with None when the leader gave
    up without an answer: those who waited then fetch for themselves.
    """

    __slots__ = ("_landed", "_landing", "_lock", "fetch", "leader_thread")

    def __init__(self, fetch: Fetch, lock: threading.Lock) -> None:
        self.fetch = fetch
        self.leader_thread: int | None = None
        self._lock = lock
        self._landed: tuple[Landed] | None = None
        self._landing: Future[Landed] | None = None  # most flights nobody waits for

    def lead(self) -> bool:
        """Become its leader, who must `land` it; false when it has one."""
        with self._lock:
            if self.leader_thread is not None:
                return False
            self.leader_thread = threading.get_ident()
            return True

    @property
    def has_landed(self) -> bool:
        return self._landed is not None

    def land(self, landed: Landed) -> None:
        """End it. Called once, by its leader."""
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
        """Wait for what lands. Raises Busy in the thread of the leader: it is a coroutine there,
        which goes on only when this call returns."""
        if self.leader_thread == threading.get_ident():
            raise Busy("a coroutine of this thread is fetching")
        return self._find_landing().result()

    async def wait_async(self) -> Landed:
        """Wait for what lands, in a coroutine."""
        # Shielded: a reader that gives up must not cancel the flight of the others.
        return await asyncio.shield(asyncio.wrap_future(self._find_landing()))


class SingleFlight:
    """At most one flight for a queue offset at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[QueueKey, list[Flight]] = {}

    def find(self, key: QueueKey, offset: int, owner: object) -> Flight | None:
        """Find the flight that is to bring an offset of that owner."""
        with self._lock:
            return self._find(key, offset, owner)

    def join(self, fetch: Fetch) -> Flight:
        """Join the flight that brings the fetch's first message: a new one, for this fetch, when
        there is none."""
        with self._lock:
            found = self._find(fetch.key, fetch.start, fetch.file)
            if found is None:
                found = Flight(fetch, self._lock)
                self._flights.setdefault(fetch.key, []).append(found)
            return found

    def land(self, flight: Flight, landed: Landed) -> None:
        """End a flight."""
        key = flight.fetch.key
        with self._lock:
            flights = self._flights[key]
            flights.remove(flight)
            if not flights:
                del self._flights[key]
        flight.land(landed)

    def find_next_start(self, key: QueueKey, offset: int) -> int | None:
        """Find where the first flight behind an offset begins."""
        with self._lock:
            starts = (flight.fetch.start for flight in self._flights.get(key, ()))
            return min((start for start in starts if start > offset), default=None)

    def _find(self, key: QueueKey, offset: int, owner: object) -> Flight | None:
        for flight in self._flights.get(key, ()):
            fetch = flight.fetch
            if fetch.start <= offset < fetch.end and fetch.file is owner:
                return flight
        return None
