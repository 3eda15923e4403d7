"""Long loops on the event loop that let other tasks run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

TURN_S: Final = 0.005
"""Time (seconds) after which other tasks run."""
_Item = TypeVar("_Item")


async def take_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield items, and let other tasks of the event loop run every TURN_S. These tasks may change
    what `items` iterates over, so pass a copy if needed."""
    end_s = time.monotonic() + TURN_S
    for item in items:
        yield item
        if time.monotonic() >= end_s:
            await asyncio.sleep(0)
            end_s = time.monotonic() + TURN_S
