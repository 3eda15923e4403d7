"""Read-ahead of the next runs of messages while the caller works on the current run. An answer of
an object store takes much longer than the checks, but several concurrent requests take about as
long as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event, Semaphore
from typing import NamedTuple, Self, TypeAlias

from tieredstore.scan.findings import Finding, OnFinding
from tieredstore.scan.read.batch import UnitRun

RUNS_AHEAD = 4
"""Maximum number of runs that one reader reads ahead."""
RUNS_AHEAD_IN_ALL = 16
"""Maximum number of runs that all readers of the process read ahead, in addition to one run per
reader. With runs of 4 MiB this is 64 MiB."""
RUNS_PLANNED = 16
"""Maximum number of runs for which the units are read in advance, before their messages are
requested."""

Read: TypeAlias = Callable[[UnitRun], Callable[[], memoryview]]
"""Function that takes a run, and returns a function that reads its bytes. The returned function may
be called in another thread."""


class LoadedRun(NamedTuple):
    """Run, and a function that returns its bytes or raises the error of the read. Call `load`
    before the next run is requested."""

    run: UnitRun
    load: Callable[[], memoryview]


_Planned: TypeAlias = "Finding | Exception | tuple[UnitRun, Callable[[], memoryview]] | None"


def load_ahead(
    runs_of: Callable[[OnFinding], Iterator[UnitRun]], read: Read, on_finding: OnFinding
) -> Iterator[LoadedRun]:
    """Yield the runs in order, while other threads read the next few. `runs_of`: yields the runs,
    in a thread of its own, and passes findings about units to its argument. Findings and errors
    arrive in the same order as without read-ahead."""
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
                    on_finding(item)
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
    """Yield the planned runs, findings and errors in order, while threads read the next runs."""
    window: deque[Finding | Exception | LoadedRun] = deque()
    loading, is_end = 0, False
    with _Share() as share:
        while True:
            while not is_end and share.covers(loading):
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
            share.reduce(loading)
            yield first


_IN_ALL = Semaphore(RUNS_AHEAD_IN_ALL)


class _Share:
    """One reader's share of the runs that all readers together may read ahead."""

    def __init__(self) -> None:
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reduce(0)

    def covers(self, loading: int) -> bool:
        """Return whether the reader may read another run besides `loading` runs. A first run is
        always allowed."""
        if loading > RUNS_AHEAD:
            return False
        if loading > self._count and _IN_ALL.acquire(blocking=False):
            self._count += 1
        return loading <= self._count

    def reduce(self, loading: int) -> None:
        """Reduce the share to `loading` runs, and leave the rest to other readers."""
        while self._count > loading:
            self._count -= 1
            _IN_ALL.release()
