"""Processes many items with as many threads as are useful."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

_LOOK_SECONDS: Final = 0.005
_BUSY_SHARE: Final = 0.75
"""Share of its time for which a thread must run or wait for a processor to count as busy. A busy
thread works alone, because more threads would not help."""
_LOOKS: Final = 20
"""Number of checks of the pool's threads per measurement. A single check is not enough, because a
busy thread is sometimes interrupted."""
_MOST_LOOKS: Final = 640
"""Maximum number of checks per measurement. The number starts at `_LOOKS`, and doubles each time
that more threads made the pool slower."""
_STEPS: Final = 20
"""Number of initial steps that measure the speed of a single thread."""


def run_worker_pool(step: Callable[[], bool], threads: int, name: str) -> None:
    """Call `step` repeatedly, in up to `threads` threads, until it returns False. `step` takes the
    next item itself. One thread works alone while it is busy, and whenever more threads make it
    slower. Raises the error of a step, or an interrupt of the caller (Ctrl-C), after the running
    steps have finished. No further step begins then. The process can exit without waiting for the
    threads."""
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
    """Threads of one call of `run_worker_pool`. The other threads pause while the first works
    alone."""

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
        """Start a worker thread. Executor threads are not used, because the process waits for them
        at exit."""
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
        """Prevent workers from beginning another step."""
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
        self._let_all_go_on()  # so that all workers reach the step that returns False

    def _let_all_go_on(self) -> None:
        with self._lock:
            self._is_over = True
            self._may_help.set()

    def _stand_aside(self) -> None:
        with self._lock:
            if not self._is_over:
                self._may_help.clear()

    def steer(self, others: list[str]) -> None:
        """Let the other threads work as long as they make the pool faster. Returns when the work is
        done."""
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
        """Wait until the first worker is no longer busy all the time. Returns its steps per second
        until then, 0 if unknown, or None when the work is done."""
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
        """Wait until all threads together are slower than `pace`, the steps per second of one
        thread alone. Returns False when the work is done."""
        seconds = _LOOKS * _LOOK_SECONDS
        since, steps = time.monotonic(), sum(self._steps)
        while wait(self.workers, seconds).not_done and not self._is_over:
            now, done = time.monotonic(), sum(self._steps)
            if done - steps < pace * (now - since):
                return True
            since, steps = now, done
        return False


class _Worker:
    """A worker thread and its measurements."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._folder = f"/proc/self/task/{threading.get_native_id()}"

    def measure_busy_seconds(self) -> float:
        """Return the time for which the thread ran or waited for a processor (Linux only). Waiting
        counts because more threads would only increase it on a busy machine."""
        try:
            computed = time.clock_gettime(time.pthread_getcpuclockid(self._ident))
        except OSError:
            return 0  # The thread has ended.
        waited = self._read("schedstat").split()
        return computed + (int(waited[1]) / 1e9 if len(waited) > 1 else 0)

    def is_ready(self) -> bool:
        """Return whether the thread is running or waiting for a processor. CPU times would show
        this only later. Returns False if the system does not report it."""
        return self._read("stat").rpartition(")")[2].startswith(" R")

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._folder}/{name}", encoding="ascii", errors="replace") as file:
                return file.read()
        except OSError:
            return ""
