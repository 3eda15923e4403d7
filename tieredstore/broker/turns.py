"""Long loops that yield to other tasks of the event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, TypeVar

TURN_S: Final = 0.005
"""Time (seconds) after which other tasks run."""
PART_ROWS: Final = 1_000
"""Maximum number of rows of a large table encoded in one call."""
_PAUSE_S: Final = 0.0005
_Item = TypeVar("_Item")


async def take_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield items, letting other tasks run every TURN_S. These tasks may change what `items`
    iterates over, so pass a copy if needed."""
    end_s = time.monotonic() + TURN_S
    for item in items:
        yield item
        if time.monotonic() >= end_s:
            await asyncio.sleep(0)
            end_s = time.monotonic() + TURN_S


def take_parts(rows: Iterable[tuple[str, _Item]]) -> Iterator[dict[str, _Item]]:
    """Yield the rows of a large table in parts, in a worker thread. Encoding a part blocks the
    event loop, so the thread pauses after each part."""
    left = iter(rows)
    while part := dict(itertools.islice(left, PART_ROWS)):
        yield part
        time.sleep(_PAUSE_S)
