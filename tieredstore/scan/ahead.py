"""Concurrent work on several items that each wait for a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

from tieredstore.contracts.segment import SegmentProvider

T = TypeVar("T")
R = TypeVar("R")

MOST_THREADS = 128
_WINDOWS = 4
"""Maximum number of items that are begun before the caller requests their results, as a multiple of
the number of concurrent items."""


class _Here(threading.local):
    """State of a thread. `pool`: the pool that the thread belongs to, while it works on an item."""

    pool: ThreadPoolExecutor | None = None


_here = _Here()


def waits_for_network(provider: SegmentProvider) -> bool:
    """Return whether reads from a provider wait for a network. A provider that cannot rewrite bytes
    is taken to be an object store."""
    return not provider.capabilities.rewritable


def width_of(provider: SegmentProvider) -> int:
    """Return the number of items to process concurrently over a network."""
    return min(max(provider.capabilities.concurrent_reads, 1), MOST_THREADS)


def map_ahead(
    provider: SegmentProvider,
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    waits: Callable[[T], bool] = lambda _: True,
) -> Iterator[R]:
    """Yield the result of `function` for each item, in order. Over a network, as many items are
    processed concurrently as the provider can answer, and a bounded number of items is begun before
    the caller requests their results. If `function` itself calls `map_ahead`, both calls share the
    same threads. `waits`: function that returns False for an item that sends no request and so
    needs no thread. Raises the errors of `function`."""
    if not waits_for_network(provider) or (isinstance(items, Sequence) and len(items) < 2):
        yield from map(function, items)
        return
    width = width_of(provider)
    if _here.pool is not None:
        yield from _map_within(_here.pool, width, function, items)
        return
    with ThreadPoolExecutor(width, "tiered-plan") as pool:
        window: deque[tuple[T, Future[R] | None]] = deque()
        try:
            for item in items:
                future = pool.submit(_work, pool, function, item) if waits(item) else None
                window.append((item, future))
                if len(window) >= _WINDOWS * width:
                    yield _finish(function, *window.popleft())
            while window:
                yield _finish(function, *window.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _finish(function: Callable[[T], R], item: T, future: Future[R] | None) -> R:
    return function(item) if future is None else future.result()


def _work(pool: ThreadPoolExecutor, function: Callable[[T], R], item: T) -> R:
    _here.pool = pool
    return function(item)


def _map_within(
    pool: ThreadPoolExecutor, width: int, function: Callable[[T], R], items: Iterable[T]
) -> Iterator[R]:
    """Do the work of a `map_ahead` call that runs in a thread of the pool. If the next item is not
    begun by any thread, this thread processes the item itself. Threads therefore never wait for
    each other without end."""
    window: deque[tuple[T, Future[R]]] = deque()
    following = iter(items)
    try:
        while True:
            for item in islice(following, width - len(window)):
                window.append((item, pool.submit(_work, pool, function, item)))
            if not window:
                return
            item, future = window.popleft()
            yield function(item) if future.cancel() else future.result()
    finally:
        # Those under way use what the caller closes next.
        wait([future for _, future in window if not future.cancel()])
