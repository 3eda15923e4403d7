"""LookUps: calls of the store that may wait for a tier, in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from tieredstore.errors import Busy

THREADS: Final = 8
MAX_CALLS: Final = 512
"""Calls that run or wait for a thread at the same time."""
STOP_S: Final = 2.0
_Found = TypeVar("_Found")


class LookUps:
    """Runs what clients ask of the store by time, key and id. A tier that does not answer holds
    these threads up, and not those in which the files of `config/` are written. `run` is called on
    the loop."""

    def __init__(self, threads: int = THREADS, max_calls: int = MAX_CALLS) -> None:
        self._pool = ThreadPoolExecutor(threads, "look-up")
        self._max_calls = max_calls
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., _Found], *arguments: object) -> _Found:
        """Call a function in a thread and return what it returns. Raises Busy when too many calls
        wait, and what the function raises."""
        with self._lock:
            if len(self._calls) >= self._max_calls:
                raise Busy(f"look-ups: at most {self._max_calls} run or wait at the same time")
            call = self._pool.submit(function, *arguments)
            self._calls.add(call)
        call.add_done_callback(self._forget)  # after its end, or a client's
        return await asyncio.wrap_future(call)

    def stop(self) -> bool:
        """Begin none any more and wait a little for those that run. Blocks. Returns whether all
        have ended: a thread that has not would hold the process up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            calls = set(self._calls)
        return not wait(calls, STOP_S).not_done

    def _forget(self, call: Future[Any]) -> None:
        with self._lock:
            self._calls.discard(call)
