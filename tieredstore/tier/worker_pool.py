"""Work on many items by as many threads as help."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

_LOOK_SECONDS: Final = 0.005
_BUSY_SHARE: Final = 0.75
"""A thread that computes, or waits for a processor, for this share of its time is helped by no
other: one runs at a time."""
_LOOKS: Final = 20
"""Over so many looks its time counts: one that computes is held up now and then."""


def run_worker_pool(step: Callable[[], bool], threads: int, name: str) -> None:
    """Call `step` again and again until it returns False; it takes its item itself and may run in
    several threads at once, up to `threads`.

    One thread goes on alone as long as it is busy: threads that do not wait for a backend are in
    each other's way (measured: uploads to the page cache by one thread are half again as fast as
    by eight). Raises what a step raises, or what interrupts the caller (Ctrl-C), after the steps
    in hand; no other is begun then. A process that ends waits for none of them.
    """
    worker: list[_Worker] = []
    ending = threading.Event()

    def work() -> None:
        worker.append(_Worker())
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


class _Worker:
    """The thread that makes one, seen from others."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._folder = f"/proc/self/task/{threading.get_native_id()}"

    def measure_busy_seconds(self) -> float:
        """Measure how long it computed, and was ready to but had no processor (Linux alone tells):
        on a machine that has much else to do, others beside it would make it worse."""
        computed = time.clock_gettime(time.pthread_getcpuclockid(self._ident))
        waited = self._read("schedstat").split()
        return computed + (int(waited[1]) / 1e9 if len(waited) > 1 else 0)

    def is_ready(self) -> bool:
        """Tell whether it computes or waits for a processor just now, which its times show later;
        False where the system does not tell."""
        return self._read("stat").rpartition(")")[2].startswith(" R")

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._folder}/{name}", encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def _ends_busy(first: Future[None], worker: list[_Worker]) -> bool:
    """Wait as long as the first worker computes; whether it came to its end meanwhile."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return False
    looks: deque[tuple[float, float]] = deque(maxlen=_LOOKS)  # times of the clock, and busy ones
    while not wait([first], _LOOK_SECONDS).done:
        if not worker:
            continue  # not begun yet
        now, computed = time.monotonic(), worker[0].measure_busy_seconds()
        looks.append((now, computed))
        since, before = looks[0]
        is_busy = computed - before >= (now - since) * _BUSY_SHARE
        if not (is_busy or worker[0].is_ready()):
            return False
    return True
