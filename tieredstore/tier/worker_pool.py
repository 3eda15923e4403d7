"""Work on many items by as many threads as help."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

_LOOK_SECONDS: Final = 0.005
_BUSY_SHARE: Final = 0.75
"""A thread that computes for this share of its time is helped by no other: one runs at a time."""


def run_worker_pool(step: Callable[[], bool], threads: int, name: str) -> None:
    """Call `step` again and again until it returns False; it takes its item itself and may run in
    several threads at once, up to `threads`.

    One thread goes on alone as long as it is busy: threads that do not wait for a backend are in
    each other's way (measured: uploads to the page cache by one thread are half again as fast as
    by eight). Raises what a step raises, or what interrupts the caller (Ctrl-C), after the steps
    in hand; no other is begun then. A process that ends waits for none of them.
    """
    worker: list[int] = []
    ending = threading.Event()

    def work() -> None:
        worker.append(threading.get_ident())
        try:
            while not ending.is_set() and step():
                pass
        except BaseException:
            ending.set()
            raise

    workers: list[Future[None]] = []
    try:
        workers.append(_start_thread(work, f"{name}_0"))
        if threads > 1 and not _ends_busy(workers[0], worker):
            workers += (_start_thread(work, f"{name}_{n}") for n in range(1, threads))
        for done in workers:
            done.result()
    finally:
        ending.set()
        wait(workers)


def _start_thread(work: Callable[[], None], name: str) -> Future[None]:
    """Not an executor's, whose threads hold up the end of the process until they have no work."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _ends_busy(first: Future[None], worker: list[int]) -> bool:
    """Wait as long as the first worker computes; whether it came to its end meanwhile."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return False
    wall = busy = 0.0
    while not wait([first], _LOOK_SECONDS).done:
        if not worker:
            continue  # not begun yet
        now, computed = time.monotonic(), time.clock_gettime(clock_of(worker[0]))
        if wall and computed - busy < (now - wall) * _BUSY_SHARE:
            return False
        wall, busy = now, computed
    return True
