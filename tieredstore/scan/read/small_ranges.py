"""Concurrent reads of several small ranges, for reads that wait for a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.ahead import waits_for_network, width_of
from tieredstore.scan.findings import Finding, OnFinding

T = TypeVar("T")
R = TypeVar("R")

SMALL_BYTES = 1 << 20
"""Maximum commit log bytes of a range that is read ahead as a whole. Larger ranges are read ahead
run by run."""
AHEAD_BYTES = 16 << 20
"""Maximum commit log bytes of the ranges that are read ahead."""
_BATCHES = 2
"""Number of batches of a range that are requested in advance. A small range usually has only one
batch. The request for a second batch then finds the end of the range."""

Read: TypeAlias = Callable[[T, OnFinding], Generator[R]]
"""Function that reads an item in batches. The batches of an item may be read by different threads,
but never by two threads at the same time."""


def read_small_ahead(
    provider: SegmentProvider,
    items: Iterable[T],
    size_of: Callable[[T], int],
    read: Read[T, R],
    on_finding: OnFinding,
) -> Generator[R]:
    """Yield the batches of each item, in item order. Over a network the next few small items are
    read ahead: at most 16 MiB, and as many as the provider answers at the same time. `size_of`:
    commit log bytes of an item. Findings and errors arrive in order, as without read-ahead."""
    if not waits_for_network(provider):
        for item in items:
            yield from read(item, on_finding)
        return
    width = width_of(provider)
    with ThreadPoolExecutor(width, "tiered-small") as pool:
        window: deque[_Ahead[T, R]] = deque()
        held_bytes = 0
        try:
            for item in items:
                size_bytes = size_of(item)
                is_small = size_bytes <= SMALL_BYTES
                held_bytes += size_bytes
                while window and (not is_small or len(window) >= width or held_bytes > AHEAD_BYTES):
                    held_bytes -= window[0].size_bytes
                    yield from window.popleft().take(on_finding)
                if is_small:
                    window.append(_Ahead(pool, item, size_bytes, read))
                else:
                    held_bytes -= size_bytes
                    yield from read(item, on_finding)
            while window:
                yield from window.popleft().take(on_finding)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for ahead in window:
                ahead.close()


class _Ahead(Generic[T, R]):
    """Small range whose first batches are read ahead by a thread."""

    def __init__(
        self, pool: ThreadPoolExecutor, item: T, size_bytes: int, read: Read[T, R]
    ) -> None:
        self.size_bytes = size_bytes
        self._events: list[R | Finding] = []
        self._tell: OnFinding = self._events.append
        self._batches = read(item, self._on_finding)
        self._read: Future[None] = pool.submit(self._read_first)

    def _read_first(self) -> None:
        for batch in islice(self._batches, _BATCHES):
            self._events.append(batch)

    def _on_finding(self, finding: Finding) -> None:
        self._tell(finding)

    def take(self, on_finding: OnFinding) -> Generator[R]:
        """Yield the batches that were read ahead, then the rest of the item."""
        try:
            error = self._read.exception()
            for event in self._events:
                if isinstance(event, Finding):
                    on_finding(event)
                else:
                    yield event
            if error is not None:
                raise error
            self._events.clear()
            self._tell = on_finding
            yield from self._batches
        finally:
            self.close()

    def close(self) -> None:
        self._batches.close()
