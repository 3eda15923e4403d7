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
_MOST_LOOKS: Final = 640
"""Each time that help made it slower, twice as many looks count for the next time, up to these."""
_STEPS: Final = 20
"""So many steps within these looks say how fast a thread works alone."""


def run_worker_pool(step: Callable[[], bool], threads: int, name: str) -> None:
    """Call `step` again and again until it returns False; it takes its item itself and may run in
    several threads at once, up to `threads`.

    One thread goes on alone as long as it is busy, and again where less is done with the others
    than was done without them: threads that do not wait for a backend are in each other's way
    (measured: uploads to the page cache by one thread are half again as fast as by eight). Raises
    what a step raises, or what interrupts the caller (Ctrl-C), after the steps in hand; no other is
    begun then. A process that ends waits for none of them.
    """
    pool = _Pool(step)
    try:
        pool.start(f"{name}_0")
        if threads > 1:
            pool.steer([f"{name}_{number}" for number in range(1, threads)])
        for done in pool.workers:
            done.result()
    finally:
        pool.end()
        wait(pool.workers)


class _Pool:
    """The threads of one run. All but the first stand aside while it works alone."""

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step = step
        self._lock = threading.Lock()
        self._may_help = threading.Event()
        self._is_over = False
        self._is_ending = False
        self._first: _Worker | None = None
        self._steps: list[int] = []
        self.workers: list[Future[None]] = []

    def start(self, name: str) -> None:
        """Start a worker. Not an executor's, whose threads hold up the end of the process until
        they have no work."""
        done: Future[None] = Future()
        number = len(self.workers)
        self._steps.append(0)

        def run() -> None:
            try:
                self._work(number)
            except BaseException as error:
                self.end()
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=run, name=name, daemon=True).start()
        self.workers.append(done)

    def end(self) -> None:
        """Let no worker begin another step."""
        self._is_ending = True
        self._let_all_go_on()

    def _work(self, number: int) -> None:
        if not number:
            self._first = _Worker()
        while not self._is_ending:
            if number:
                self._may_help.wait()
            if self._is_ending or not self._step():
                break
            self._steps[number] += 1
        self._let_all_go_on()  # to the step that tells them that nothing is left

    def _let_all_go_on(self) -> None:
        with self._lock:
            self._is_over = True
            self._may_help.set()

    def _stand_aside(self) -> None:
        with self._lock:
            if not self._is_over:
                self._may_help.clear()

    def steer(self, others: list[str]) -> None:
        """Let the others work where that helps, until the work comes to its end."""
        last_pace, looks = 0.0, 1
        while (pace := self._watch_alone(looks)) is not None:
            last_pace = pace or last_pace
            self._may_help.set()
            if len(self.workers) == 1:
                for name in others:
                    self.start(name)
            if not self._become_slower(last_pace):
                return
            self._stand_aside()
            looks = min(max(2 * looks, _LOOKS), _MOST_LOOKS)

    def _watch_alone(self, least_looks: int) -> float | None:
        """Wait as long as the first worker computes. Returns the steps of a second until it waits,
        0 when these are not known, None when it came to its end."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0
        looks: deque[tuple[float, float, int]] = deque(maxlen=max(least_looks, _LOOKS))
        while not wait(self.workers[:1], _LOOK_SECONDS).done:
            first = self._first
            if first is None:
                continue  # not begun yet
            now, busy = time.monotonic(), first.measure_busy_seconds()
            looks.append((now, busy, self._steps[0]))
            if len(looks) < least_looks:
                continue
            since, before, steps = looks[0]
            is_busy = busy - before >= (now - since) * _BUSY_SHARE
            if not (is_busy or first.is_ready()):
                done = self._steps[0] - steps
                return done / (now - since) if done >= _STEPS else 0
        return None

    def _become_slower(self, pace: float) -> bool:
        """Wait until all together make fewer steps of a second; False at the end of the work."""
        seconds = _LOOKS * _LOOK_SECONDS
        since, steps = time.monotonic(), sum(self._steps)
        while wait(self.workers, seconds).not_done and not self._is_over:
            now, done = time.monotonic(), sum(self._steps)
            if done - steps < pace * (now - since):
                return True
            since, steps = now, done
        return False


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
