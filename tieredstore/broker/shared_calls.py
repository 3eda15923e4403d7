"""SharedCalls: concurrent calls with the same key share one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Final, Generic, TypeVar

STOP_S: Final = 2.0
_Result = TypeVar("_Result")


class SharedCalls(Generic[_Result]):
    """Runs at most one call per key at a time. Concurrent callers with the same key share its
    result. The call completes even if a caller is cancelled. Use only on one event loop."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[_Result]] = {}

    async def run(
        self, key: Hashable, call: Callable[[], Coroutine[object, object, _Result]]
    ) -> _Result:
        """Return the result of the call for a key, starting it unless it is already running. Raises
        the errors of the call."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.create_task(call())
            task.add_done_callback(lambda task: self._forget(key, task))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Wait up to STOP_S seconds for running calls, then cancel the rest."""
        if not self._calls:
            return
        _, late = await asyncio.wait(self._calls.values(), timeout=STOP_S)
        for task in late:
            task.cancel()

    def _forget(self, key: Hashable, task: asyncio.Task[_Result]) -> None:
        del self._calls[key]
        if not task.cancelled():
            task.exception()  # seen, also if no caller waits for it any longer
