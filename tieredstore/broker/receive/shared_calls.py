"""SharedCalls: what is done once, however many ask for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, TypeVar

STOP_S: Final = 2.0
_Result = TypeVar("_Result")


class SharedCalls(Generic[_Result]):
    """Runs one call for each key at a time: who asks for the same gets what comes of it. A caller
    that is cancelled leaves the call to come to its end. All of it belongs to one loop."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[_Result]] = {}

    async def run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Return what the call of a key returns, begun now unless it is under way; raises what it
        raises."""
        task = self._calls.get(key)
        if task is None:
            task = self._calls[key] = asyncio.create_task(call())
            task.add_done_callback(lambda task: self._forget(key, task))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Wait a little for the calls that are under way, and cancel what has not ended then."""
        if not self._calls:
            return
        _, late = await asyncio.wait(self._calls.values(), timeout=STOP_S)
        for task in late:
            task.cancel()

    def _forget(self, key: Hashable, task: asyncio.Task[_Result]) -> None:
        del self._calls[key]
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits for it any more
