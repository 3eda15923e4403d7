"""Works on several things at once where each waits for a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tieredstore.contracts.segment import SegmentProvider

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16
_AHEAD = 4 * THREADS


def waits_for_network(provider: SegmentProvider) -> bool:
    """Tell whether a provider's reads wait for a network: bytes of an object store are never
    rewritten."""
    return not provider.capabilities.rewritable


def map_ahead(
    provider: SegmentProvider, function: Callable[[T], R], items: Iterable[T]
) -> Iterator[R]:
    """Yield what `function` makes of each item, in their order; over a network of several at once,
    a bounded number of them before they are asked for. Raises what `function` raises."""
    if not waits_for_network(provider) or (isinstance(items, Sequence) and len(items) < 2):
        yield from map(function, items)
        return
    with ThreadPoolExecutor(THREADS, "tiered-plan") as pool:
        window: deque[Future[R]] = deque()
        try:
            for item in items:
                window.append(pool.submit(function, item))
                if len(window) >= _AHEAD:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
