"""Callers share fence checks. Each caller waits for one that begins after its call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.kit.waiting import wait_for
from tieredstore.errors import Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs.fencing import SharedFenceCheck
from tieredstore.testing.faults import SimulatedCrash

CALLERS = 8


class CountingCondition(threading.Condition):
    """Condition that counts waits."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1  # under the lock, which is released only by waiting
        return super().wait(timeout)


class Looks:
    """Shared fence checks whose end is controlled by the test."""

    def __init__(self) -> None:
        self.begun = 0
        self.endings: list[BaseException | None] = []
        self._may_end = threading.Semaphore(0)
        self.shared = SharedFenceCheck(self._look)
        self.changed = self.shared._changed = CountingCondition()

    def _look(self) -> None:
        self.begun += 1
        assert self._may_end.acquire(timeout=60)
        ending = self.endings.pop(0)
        if ending is not None:
            raise ending

    def end_one(self, ending: BaseException | None = None) -> None:
        self.endings.append(ending)
        self._may_end.release()

    def wait_for_begin(self, number: int) -> None:
        wait_for(lambda: self.begun == number)


def start(pool: ThreadPoolExecutor, looks: Looks, count: int) -> list[Future[None]]:
    """Start callers, and return when all of them are waiting for another caller's fence check."""
    before = looks.changed.waits
    futures = [pool.submit(looks.shared.wait) for _ in range(count)]
    wait_for(lambda: looks.changed.waits == before + count)
    return futures


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_a_look_under_way_is_not_enough_and_one_more_serves_all(looks: Looks) -> None:
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        first = pool.submit(looks.shared.wait)
        looks.wait_for_begin(1)
        others = start(pool, looks, CALLERS)
        looks.end_one()
        first.result(60)
        looks.wait_for_begin(2)
        assert not any(other.done() for other in others)
        looks.end_one()
        for other in others:
            other.result(60)
    assert looks.begun == 2


@pytest.mark.parametrize("problem", [Unavailable("no answer"), Fenced("lost")])
def test_who_shares_a_look_that_fails_does_not_look_in_turn(
    looks: Looks, problem: TieredStoreError
) -> None:
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        first = pool.submit(looks.shared.wait)
        looks.wait_for_begin(1)
        others = start(pool, looks, CALLERS)
        looks.end_one()
        looks.wait_for_begin(2)
        looks.end_one(problem)
        errors = [other.exception(60) for other in others]
    first.result()
    assert errors.count(problem) == 1
    assert all(str(error) == str(problem) for error in errors)
    assert all(error is problem or type(error) is Unavailable for error in errors)
    assert looks.begun == 2


def test_a_failed_look_does_not_fail_those_that_wait_for_the_next(looks: Looks) -> None:
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        first = pool.submit(looks.shared.wait)
        looks.wait_for_begin(1)
        others = start(pool, looks, CALLERS)
        looks.end_one(Unavailable("no answer"))
        assert isinstance(first.exception(60), Unavailable)
        looks.wait_for_begin(2)
        looks.end_one()
        for other in others:
            other.result(60)


def test_a_thread_that_ends_inside_a_look_leaves_nobody_waiting(looks: Looks) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(looks.shared.wait)
        looks.wait_for_begin(1)
        [other] = start(pool, looks, 1)
        looks.end_one(SimulatedCrash())
        assert isinstance(first.exception(60), SimulatedCrash)
        looks.wait_for_begin(2)
        looks.end_one()
        other.result(60)


def test_one_after_the_other_each_looks(looks: Looks) -> None:
    asked: list[Callable[[], None]] = [looks.shared.wait] * 3
    for number, ask in enumerate(asked, 1):
        looks.end_one()
        ask()
        assert looks.begun == number
