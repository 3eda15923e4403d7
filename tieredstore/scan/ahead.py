"""Concurrent work on items that wait for a network."""

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
    """State of a thread. `pool`: pool of the thread while it works on an item."""

    pool: ThreadPoolExecutor | None = None


_here = _Here()


def waits_for_network(provider: SegmentProvider) -> bool:
    """Return whether reads from a provider wait for a network. This is assumed of a provider that
    cannot rewrite bytes, because it is probably an object store."""
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
    """Yield the result of `function` for each item, in order. Over a network, several items are
    processed at the same time, and a bounded number is started ahead of the caller. Nested calls
    share the same threads. `waits`: returns False for an item that sends no request and so needs no
    thread. Raises the errors of `function`."""
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
    """Run a `map_ahead` call that was made in a thread of the pool. This thread processes the next
    item itself if no other thread has begun it, so threads never deadlock."""
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
