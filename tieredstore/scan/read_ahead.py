"""Reads of the runs to come, under way while the caller works on the one before.

An object store takes many times longer to answer than a record takes to be checked, and answers
several requests at once in about the time of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event, Semaphore
from typing import NamedTuple, TypeAlias

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.batch import UnitRun
from tieredstore.scan.findings import Finding, Report

RUNS_AHEAD = 4
"""Runs that are read ahead of one: with a run of 4 MiB, 16 readers hold 320 MiB."""
RUNS_PLANNED = 16
"""Runs whose units are read before their messages."""

Read: TypeAlias = Callable[[UnitRun], Callable[[], memoryview]]
"""Prepares the read of a run: what is returned may be called in another thread."""


class LoadedRun(NamedTuple):
    """A run and the read of its bytes; `load`, to be called before the next run is asked for, gives
    them, or raises what the read raised."""

    run: UnitRun
    load: Callable[[], memoryview]


_Planned: TypeAlias = "Finding | Exception | tuple[UnitRun, Callable[[], memoryview]] | None"


def is_worth_it(provider: SegmentProvider) -> bool:
    """Whether its reads wait for a network: bytes of an object store are never rewritten."""
    return not provider.capabilities.rewritable


def load_ahead(
    runs_of: Callable[[Report], Iterator[UnitRun]], read: Read, report: Report
) -> Iterator[LoadedRun]:
    """The runs in order, a few of them being read meanwhile.

    runs_of: makes the runs, in a thread of its own, given whom to tell what is wrong with units.
    Findings and errors come when the caller gets to their place, as without reading ahead.
    """
    planned: SimpleQueue[_Planned] = SimpleQueue()
    room = Semaphore(RUNS_PLANNED)
    stopping = Event()

    def plan() -> None:
        try:
            for run in runs_of(planned.put):
                planned.put((run, read(run)))
                room.acquire()
                if stopping.is_set():
                    return
            planned.put(None)
        except Exception as error:
            planned.put(error)  # raised in the caller's thread

    with ThreadPoolExecutor(RUNS_AHEAD + 2, "tiered-scan") as pool:
        try:
            pool.submit(plan)
            for item in _window(planned, pool):
                if isinstance(item, Finding):
                    report(item)
                elif isinstance(item, LoadedRun):
                    room.release()
                    yield item
                else:
                    raise item
        finally:
            stopping.set()
            room.release()
            pool.shutdown(wait=True, cancel_futures=True)


def _window(
    planned: SimpleQueue[_Planned], pool: ThreadPoolExecutor
) -> Iterator[Finding | Exception | LoadedRun]:
    """What was planned, in order; the next runs of it are being read."""
    window: deque[Finding | Exception | LoadedRun] = deque()
    loading, is_end = 0, False
    while True:
        while not is_end and loading <= RUNS_AHEAD:
            try:
                item = planned.get(block=not window)
            except Empty:
                break
            if item is None:
                is_end = True
            elif isinstance(item, tuple):
                run, load = item
                window.append(LoadedRun(run, pool.submit(load).result))
                loading += 1
            else:
                window.append(item)
        if not window:
            return
        first = window.popleft()
        loading -= isinstance(first, LoadedRun)
        yield first
