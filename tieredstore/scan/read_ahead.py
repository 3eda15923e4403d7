"""Reads of the runs to come, under way while the caller works on the one before.

An object store takes many times longer to answer than a record takes to be checked, and answers
several requests at once in about the time of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import TieredStoreError
from tieredstore.scan.batch import UnitRun
from tieredstore.scan.findings import Finding, Report

RUNS_AHEAD = 3
"""Runs that are read ahead of one: with a run of 4 MiB, 16 readers hold 256 MiB."""

Read = Callable[[UnitRun], Callable[[], memoryview]]
"""Prepares the read of a run: what is returned may be called in another thread."""


class LoadedRun(NamedTuple):
    """A run and the read of its bytes; `load` gives them, or raises what the read raised."""

    run: UnitRun
    load: Callable[[], memoryview]


def is_worth_it(provider: SegmentProvider) -> bool:
    """Whether its reads wait for a network: bytes of an object store are never rewritten."""
    return not provider.capabilities.rewritable


def load_ahead(
    runs_of: Callable[[Report], Iterator[UnitRun]], read: Read, report: Report
) -> Iterator[LoadedRun]:
    """The runs in order, a few of them being read meanwhile.

    runs_of: makes the runs, given whom to tell what is wrong with units. Findings and errors come
    when the caller gets to their place, as without reading ahead.
    """
    ahead: deque[Finding | TieredStoreError | LoadedRun] = deque()
    runs = runs_of(ahead.append)
    with ThreadPoolExecutor(RUNS_AHEAD, "tiered-scan") as pool:
        try:
            in_flight = 0
            while True:
                while in_flight <= RUNS_AHEAD:
                    found = _next(runs)
                    if found is None:
                        break
                    if isinstance(found, UnitRun):
                        future: Future[memoryview] = pool.submit(read(found))
                        ahead.append(LoadedRun(found, future.result))
                        in_flight += 1
                        continue
                    ahead.append(found)
                    break
                if not ahead:
                    return
                item = ahead.popleft()
                if isinstance(item, LoadedRun):
                    in_flight -= 1
                    yield item
                elif isinstance(item, Finding):
                    report(item)
                else:
                    raise item
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _next(runs: Iterator[UnitRun]) -> UnitRun | TieredStoreError | None:
    try:
        return next(runs, None)
    except TieredStoreError as error:
        return error
