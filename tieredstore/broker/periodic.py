"""`PeriodicTask`: a coroutine that runs again and again on the loop, and says how it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.service_thread import ServiceHealth, ServiceState

MAX_DOUBLINGS: Final = 5
_log = logging.getLogger(__name__)


class PeriodicTask:
    """Awaits `run` every `interval_ms`; after an error a round waits twice as long as the last one,
    doubled `max_doublings` times at most.

    interval_ms: a number, or a call that gives it anew for each round (a setting that may change).
    """

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
        """Begin, on the running loop. The first round comes after one interval."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=self.name)

    def wake(self) -> None:
        """Let the next round begin now."""
        self._wake.set()

    async def stop(self) -> None:
        """End the task; a round under way is cancelled. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def health(self) -> ServiceHealth:
        """Return how the task is."""
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
        # A defect is told with its place, what was raised on purpose without.
        expected = isinstance(error, TieredStoreError)
        _log.error("%s: failed, is tried again: %s", self.name, error, exc_info=not expected)
