"""The pool uses only as many threads as are useful."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tieredstore.tier import worker_pool
from tieredstore.tier.worker_pool import run_worker_pool


def taking(count: int, do: Callable[[int], object]) -> Callable[[], bool]:
    items = iter(range(count))
    lock = threading.Lock()

    def step() -> bool:
        with lock:
            item = next(items, None)
        if item is None:
            return False
        do(item)
        return True

    return step


@pytest.mark.parametrize("threads", [1, 4])
def test_every_item_is_worked_on_once(threads: int) -> None:
    done: list[int] = []
    run_worker_pool(taking(1_000, done.append), threads, "pool")
    assert sorted(done) == list(range(1_000))


def test_one_thread_stays_one() -> None:
    seen: set[int] = set()

    def note(_: int) -> None:
        threading.Event().wait(0.001)
        seen.add(threading.get_ident())

    run_worker_pool(taking(30, note), 1, "pool")
    assert len(seen) == 1


def test_work_that_waits_gets_threads_that_wait_together() -> None:
    together = threading.Barrier(4)
    # broken unless four are in here at once, the first of them since the beginning
    run_worker_pool(taking(8, lambda _: together.wait(timeout=60)), 4, "pool")


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_thread_that_waits_for_a_processor_is_not_one_that_waits_for_a_backend(
    is_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool._Worker, "measure_busy_seconds", lambda _: 0.0)
    monkeypatch.setattr(worker_pool._Worker, "is_ready", lambda _: is_ready)
    seen: set[int] = set()
    helped = threading.Event()

    def note(item: int) -> None:
        seen.add(threading.get_ident())
        if len(seen) > 1:
            helped.set()
        # A worker that is to be helped waits for that.
        helped.wait(0.002 if is_ready else 60)

    run_worker_pool(taking(30, note), 4, "pool")
    assert (len(seen) > 1) == (not is_ready)


def test_a_thread_that_computes_and_is_held_up_for_a_moment_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_ms = 0  # of the looks' time

    def look() -> float:
        nonlocal passed_ms
        passed_ms += 5
        return passed_ms / 1000

    def measure(_: worker_pool._Worker) -> float:
        return (passed_ms - 6 if passed_ms > 100 else passed_ms) / 1000

    clock = SimpleNamespace(monotonic=look, pthread_getcpuclockid=None)
    monkeypatch.setattr(worker_pool, "time", clock)
    monkeypatch.setattr(worker_pool._Worker, "measure_busy_seconds", measure)
    monkeypatch.setattr(worker_pool._Worker, "is_ready", lambda _: False)
    seen: set[int] = set()

    def step() -> bool:
        threading.Event().wait(0.004)
        seen.add(threading.get_ident())
        return passed_ms < 200

    run_worker_pool(step, 4, "pool")
    assert len(seen) == 1


class Steps:
    """Steps of work for a pool. A step is short for a single worker, and takes `together_s` with
    several. After 300 steps, the single worker seems idle, so the pool adds workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, together_s: float) -> None:
        self.together_s = together_s
        self.by: list[int] = []
        self._inside = 0
        monkeypatch.setattr(worker_pool._Worker, "measure_busy_seconds", lambda _: self._measure())
        monkeypatch.setattr(worker_pool._Worker, "is_ready", lambda _: False)

    def _measure(self) -> float:
        waits = len(self.by) >= 300 and len(set(self.by)) == 1
        return 0.0 if waits else time.monotonic()

    def do(self) -> None:
        self._inside += 1
        time.sleep(0.0001)
        if self._inside > 1:
            time.sleep(self.together_s)
        self._inside -= 1
        self.by.append(threading.get_ident())


def test_threads_that_are_in_each_other_s_way_stand_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, together_s=0.1)
    deadline = time.monotonic() + 30
    is_alone_again = False

    def step() -> bool:
        nonlocal is_alone_again
        steps.do()
        is_alone_again |= len(set(steps.by)) > 1 and len(set(steps.by[-20:])) == 1
        return not is_alone_again and time.monotonic() < deadline

    run_worker_pool(step, 4, "pool")
    assert is_alone_again


def test_threads_that_help_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, together_s=0.0)

    def step() -> bool:
        steps.do()
        return len(steps.by) < 3_000

    run_worker_pool(step, 4, "pool")
    assert steps.by.count(steps.by[0]) < 2_000  # of 3,000, with 300 at first


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_a_thread_that_ends_while_it_is_measured_is_not_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_clock(_ident: int) -> int:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(time, "pthread_getcpuclockid", find_clock)
    worked: list[int] = []

    def work(item: int) -> None:
        time.sleep(0.01)
        worked.append(item)

    run_worker_pool(taking(20, work), 4, "pool")
    assert sorted(worked) == [*range(20)]


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_a_thread_that_computes_is_ready_and_one_that_sleeps_is_not() -> None:
    found: list[worker_pool._Worker] = []
    stop = threading.Event()

    def sleep() -> None:
        found.append(worker_pool._Worker())
        stop.wait(60)

    thread = threading.Thread(target=sleep)
    thread.start()
    try:
        assert worker_pool._Worker().is_ready()
        while not found or found[0].is_ready():
            threading.Event().wait(0.01)
        before = found[0].measure_busy_seconds()
        assert before > 0
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("threads", [1, 4])
def test_what_a_step_raises_is_raised(threads: int) -> None:
    def fail(item: int) -> None:
        threading.Event().wait(0.01)
        if item == 3:
            raise ValueError("item 3")

    with pytest.raises(ValueError, match="item 3"):
        run_worker_pool(taking(8, fail), threads, "pool")


def test_after_an_error_no_thread_begins_another_step() -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        threading.Event().wait(0.01)
        if item == 3:
            raise ValueError("item 3")

    with pytest.raises(ValueError, match="item 3"):
        run_worker_pool(taking(1_000, fail), 4, "pool")
    assert len(begun) < 900  # all of them take seconds


@pytest.mark.parametrize("threads", [1, 4])
def test_an_interrupt_of_the_caller_ends_the_work(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    ended: list[int] = []

    def interrupted(*_: object) -> bool:
        begun.wait(10)
        raise KeyboardInterrupt

    def work(item: int) -> None:
        begun.set()
        threading.Event().wait(0.01)
        ended.append(item)

    monkeypatch.setattr(worker_pool._Pool, "steer", interrupted)
    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_worker_pool(taking(1_000, work), threads, "pool")
    assert len(ended) < 900
