"""Places: how many may do something at once, threads and coroutines together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

from tieredstore.tier.reading import Steps, Wait


class Places:
    """So many places; who finds none waits for one, in turn. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def enter(self) -> Steps[Place]:
        """Wait for a place; leave it when done. A thread that runs an event loop does not wait:
        those who have the places may be coroutines of that loop."""
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
        """Give a place to the next one who waits."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1


class Place:
    """A place that one has, or waits for."""

    __slots__ = ("_places", "turn")

    def __init__(self, places: Places) -> None:
        self._places = places
        self.turn: Future[None] = Future()

    def leave(self) -> None:
        """Give it back, or wait no longer."""
        if not self.turn.cancel():
            self._places.give_back()

    def wait(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.turn.result()

    async def wait_async(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self.turn))
