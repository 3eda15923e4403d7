"""Background work: coroutines that run periodically and report their health, and a thread pool for
blocking queries."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final, TypeVar

from tieredstore.broker.hosts import HOST, HostShares
from tieredstore.errors import Busy, TieredStoreError
from tieredstore.service_thread import ServiceHealth, ServiceState

MAX_DOUBLINGS: Final = 5
_log = logging.getLogger(__name__)


class PeriodicTask:
    """Runs a coroutine every `interval_ms`. Each consecutive error doubles the interval, at most
    `max_doublings` times. `interval_ms`: a number, or a function called before each wait if the
    setting can change at run time."""

    def __init__(
        self,
        name: str,
        interval_ms: int | Callable[[], int],
        run: Callable[[], Awaitable[object]],
        max_doublings: int = MAX_DOUBLINGS,
    ) -> None:
        self.name = name
        self._max_doublings = max_doublings
        self._interval_ms: Callable[[], int] = (
            interval_ms if callable(interval_ms) else lambda: interval_ms
        )
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the task on the current event loop. The first run starts after one interval."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=self.name)

    def wake(self) -> None:
        """Run now instead of waiting for the next interval."""
        self._wake.set()

    async def stop(self) -> None:
        """Stop the task and cancel a run in progress. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def health(self) -> ServiceHealth:
        if self._task is None:
            state = ServiceState.STOPPED
        elif self._task.done():
            state = ServiceState.DEAD
        else:
            state = ServiceState.FAILED if self._failures else ServiceState.RUNNING
        return ServiceHealth(self.name, state, self._failures, 0, self._error)

    async def _loop(self) -> None:
        while True:
            await self._pause()
            try:
                await self._run()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._note_failure(error)
            else:
                if self._failures:
                    _log.info("%s: works again, after %d failures", self.name, self._failures)
                self._failures, self._error = 0, None

    async def _pause(self) -> None:
        interval_ms = self._interval_ms() << min(self._failures, self._max_doublings)
        # Not wait_for: a cancellation that meets a wake would be lost in it.
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_ms / 1000):
                await self._wake.wait()
        self._wake.clear()

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._error = error
        # A defect is logged with its traceback, an intended error without.
        expected = isinstance(error, TieredStoreError)
        _log.error("%s: failed, is tried again: %s", self.name, error, exc_info=not expected)


THREADS: Final = 8
MAX_CALLS: Final = 512
"""Maximum number of calls that run or wait for a thread."""
STOP_S: Final = 2.0
_Found = TypeVar("_Found")


class LookUps:
    """Runs clients' queries by time, key and id in a thread pool of their own. If a tier does not
    respond, only these threads block, and the files of `config/` are still written. Call `run` on
    the event loop."""

    def __init__(self, threads: int = THREADS, max_calls: int = MAX_CALLS) -> None:
        self._pool = ThreadPoolExecutor(threads, "look-up")
        self._shares = HostShares(max_calls)
        self._calls: dict[Future[Any], str] = {}
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., _Found], *arguments: object) -> _Found:
        """Run a function in a thread and return its result. Raises Busy if too many calls are
        running or queued, in total or for the current host. Also raises the errors of the
        function."""
        host = HOST.get()
        with self._lock:
            if not self._shares.has_room(host):
                raise Busy(f"look-ups: {len(self._calls)} run or wait, no further one of this host")
            call = self._pool.submit(function, *arguments)
            self._calls[call] = host
            self._shares.add(host)
        call.add_done_callback(self._forget)  # after its end, or a client's
        return await asyncio.wrap_future(call)

    def stop(self) -> bool:
        """Refuse new calls and wait up to STOP_S seconds for running ones. Blocks. Returns whether
        all calls have ended. A thread still running would keep the process alive."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            calls = set(self._calls)
        return not wait(calls, STOP_S).not_done

    def _forget(self, call: Future[Any]) -> None:
        with self._lock:
            self._shares.give_back(self._calls.pop(call))
