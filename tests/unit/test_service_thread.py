"""Tests of the loop shared by all services: when it calls its function, and its health report."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tieredstore.clock import SYSTEM_CLOCK, ManualClock
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.service_thread import MonitoredServices, ServiceState, ServiceThread

_PATIENCE_S = 60


class Script(ManualClock):
    """A clock that records waits, and stops the service in wait number `rounds`. `at[n]` is called
    in the n-th wait (from 1) and returns whether to end it early."""

    def __init__(self, rounds: int, at: dict[int, Callable[[], bool]] | None = None) -> None:
        super().__init__()
        self.rounds = rounds
        self.at = at or {}
        self.waits: list[int] = []
        self.service: ServiceThread | None = None

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self.waits.append(timeout_ms)
        action = self.at.get(len(self.waits))
        woken = action() if action is not None else super().wait(event, timeout_ms)
        if len(self.waits) == self.rounds:
            assert self.service is not None
            self.service.stop()
        return woken


class Work:
    """Function called repeatedly by a service. It records the time of each call, and fails in some
    calls."""

    def __init__(self, clock: ManualClock, failing: Iterator[bool]) -> None:
        self.clock = clock
        self.failing = failing
        self.times: list[int] = []

    def __call__(self) -> None:
        self.times.append(self.clock.now_ms())
        if next(self.failing, False):
            raise Unavailable("the backend is away")


def failures(count: int) -> Iterator[bool]:
    return iter([True] * count)


def test_rounds_come_at_the_interval() -> None:
    clock = Script(3)
    work = Work(clock, failures(0))
    clock.service = ServiceThread("s", work, 10, clock=clock)
    clock.service.run()
    assert clock.waits == [10, 10, 10]
    assert len(work.times) == 3
    clock = Script(3)
    work = Work(clock, failures(0))
    clock.service = ServiceThread("s", work, 10, clock=clock, waits_first=True)
    clock.service.run()
    assert clock.waits == [10, 10, 10]
    assert len(work.times) == 2


def test_an_interval_may_change_between_two_rounds() -> None:
    clock = Script(4)
    intervals = iter([10, 20, 30])
    clock.service = ServiceThread(
        "s", Work(clock, failures(0)), lambda: next(intervals, 40), clock=clock
    )
    clock.service.run()
    assert clock.waits[0] < clock.waits[-1] == 40


def test_it_backs_off_while_it_fails_and_recovers() -> None:
    clock = Script(7)
    told: list[TieredStoreError] = []
    work = Work(clock, failures(5))
    clock.service = ServiceThread(
        "s", work, 10, clock=clock, max_backoff_ms=100, on_error=told.append
    )
    clock.service.run()
    assert clock.waits == [20, 40, 80, 100, 100, 10, 10]
    assert len(told) == 5
    assert len(work.times) == 7


def test_without_a_backoff_a_failure_changes_nothing() -> None:
    clock = Script(4)
    clock.service = ServiceThread("s", Work(clock, failures(3)), 10, clock=clock)
    clock.service.run()
    assert clock.waits == [10, 10, 10, 10]


def test_a_wake_begins_a_round_early() -> None:
    clock = Script(3, {1: lambda: True})
    work = Work(clock, failures(1))
    clock.service = ServiceThread("s", work, 10, clock=clock, max_backoff_ms=100)
    clock.service.run()
    assert work.times == [work.times[0]] * 2 + [work.times[0] + 10]


def test_a_wake_while_it_backs_off_does_its_duty_only_and_delays_no_work() -> None:
    duties: list[int] = []

    def woken() -> bool:
        clock.advance(3)
        return True

    clock = Script(12, dict.fromkeys(range(1, 7), woken))
    work = Work(clock, failures(1))
    begin = clock.now_ms()
    clock.service = ServiceThread(
        "s",
        work,
        10,
        clock=clock,
        max_backoff_ms=100,
        duty=lambda: duties.append(clock.now_ms() - begin),
    )
    clock.service.run()
    assert duties == [3, 6, 9, 12, 15, 18]
    assert clock.waits[:8] == [20, 17, 14, 11, 8, 5, 2, 10]
    assert [time - begin for time in work.times[:3]] == [0, 20, 30]


def test_a_clock_set_back_after_a_failure_does_not_stop_the_work() -> None:
    def back() -> bool:
        clock.advance(-365 * 86_400_000)
        return False

    clock = Script(5, {1: back})
    work = Work(clock, failures(1))
    duties: list[int] = []
    clock.service = ServiceThread(
        "s",
        work,
        10_000,
        clock=clock,
        max_backoff_ms=600_000,
        duty=lambda: duties.append(1),
    )
    clock.service.run()
    assert len(work.times) == 5
    assert duties == []


def test_it_says_that_it_failed_and_why_until_a_round_goes_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reached, go_on = threading.Semaphore(0), threading.Semaphore(0)
    plan: list[Exception | None] = [Unavailable("away"), ValueError("a bug"), None]

    def work() -> None:
        reached.release()
        assert go_on.acquire(timeout=_PATIENCE_S)
        error = plan.pop(0) if plan else None
        if error is not None:
            raise error

    service = ServiceThread("s", work, 0)
    assert service.health().state is ServiceState.STOPPED
    service.start()
    expected = [None, "away", "a bug", None, None]
    for number, text in enumerate(expected):
        assert reached.acquire(timeout=_PATIENCE_S)
        health = service.health()
        assert health.name == "s"
        assert (None if health.error is None else str(health.error)) == text
        assert health.failures == (number if text else 0)
        assert health.state is (ServiceState.FAILED if text else ServiceState.RUNNING)
        go_on.release()
    go_on.release()
    service._stopping = True
    go_on.release()
    service.stop()
    assert service.health().state is ServiceState.STOPPED
    assert "s: away" in caplog.text
    assert "a bug" in caplog.text


def test_an_overdue_round_and_one_without_progress_are_late() -> None:
    clock = ManualClock()
    begun, go_on = threading.Event(), threading.Event()
    waiting, woken = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(_PATIENCE_S)

    def wait(event: threading.Event, timeout_ms: int) -> bool:
        waiting.set()
        return woken.wait(_PATIENCE_S)

    clock.wait = wait  # type: ignore[method-assign]
    service = ServiceThread("s", work, 1_000, clock=clock, late_after_ms=500)
    service.start()
    assert begun.wait(_PATIENCE_S)
    clock.advance(500)
    assert service.health().state is ServiceState.RUNNING
    clock.advance(1)
    assert service.health().state is ServiceState.LATE  # the round hangs
    assert service.health().late_ms == 501
    service.report_progress()
    assert service.health().state is ServiceState.RUNNING
    go_on.set()
    assert waiting.wait(_PATIENCE_S)
    clock.advance(1_500)
    assert service.health().state is ServiceState.RUNNING
    clock.advance(1)
    assert service.health().state is ServiceState.LATE  # no round begins
    clock.advance(-10_000)
    assert service.health().late_ms == 0
    woken.set()
    service.stop()


def test_stopping_is_prompt_and_a_stopped_loop_starts_anew() -> None:
    rounds: list[int] = []
    service = ServiceThread("s", lambda: rounds.append(1), 3_600_000, clock=SYSTEM_CLOCK)
    for number in (1, 2):
        service.start()
        service.start()
        thread = service._thread
        assert thread is not None
        service.stop()
        service.stop()
        assert not thread.is_alive()
        assert not service.is_running
        assert len(rounds) <= number
    assert service.is_stopping


def test_a_stop_waits_for_a_round_no_longer_than_it_is_told() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(_PATIENCE_S)

    service = ServiceThread("s", work, 1)
    service.start()
    thread = service._thread
    assert thread is not None
    assert begun.wait(_PATIENCE_S)
    service.stop(timeout_ms=1)
    assert thread.is_alive()
    go_on.set()
    thread.join(_PATIENCE_S)
    assert not thread.is_alive()


def test_a_loop_without_an_interval_runs_when_it_is_woken() -> None:
    wake, ran = threading.Event(), threading.Semaphore(0)
    plan = [None, Unavailable("once"), None]

    def work() -> None:
        error = plan.pop(0)
        ran.release()
        if error is not None:
            raise error

    service = ServiceThread("s", work, None, wake_event=wake)
    service.start()
    assert ran.acquire(timeout=_PATIENCE_S)  # the first round comes at once
    wake.set()
    assert ran.acquire(timeout=_PATIENCE_S)
    service.wake()
    assert ran.acquire(timeout=_PATIENCE_S)
    service.stop()
    assert plan == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_unasked_is_dead_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Killed(BaseException):
        pass

    def work() -> None:
        raise Killed("from below")

    service = ServiceThread("s", work, 1)
    with caplog.at_level(logging.CRITICAL):
        service.start()
        assert service._thread is not None
        service._thread.join(_PATIENCE_S)
    health = service.health()
    assert health.state is ServiceState.DEAD
    assert isinstance(health.error, Killed)
    assert "s: the thread ends: Killed('from below')" in caplog.text
    service.stop()


def test_telling_of_an_error_may_fail() -> None:
    def tell(error: TieredStoreError) -> None:
        raise ValueError("the teller")

    clock = Script(2)
    clock.service = ServiceThread("s", Work(clock, failures(2)), 10, clock=clock, on_error=tell)
    clock.service.run()
    assert clock.waits == [10, 10]


def test_what_has_loops_can_be_asked() -> None:
    class Store:
        def health(self) -> list[object]:
            return []

    assert isinstance(Store(), MonitoredServices)
    assert not isinstance(object(), MonitoredServices)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals of threads")
def test_a_signal_makes_no_wait_of_a_loop_endless() -> None:
    """A signal during a wait does not make the wait endless."""
    rounds = threading.Semaphore(0)
    service = ServiceThread("s", rounds.release, 10, clock=SYSTEM_CLOCK)
    handler, interval_s = signal.signal(signal.SIGUSR1, lambda *_: None), sys.getswitchinterval()
    sys.setswitchinterval(1)  # an interrupted thread continues only when this one waits
    try:
        service.start()
        assert service._thread is not None
        assert service._thread.ident is not None
        for _ in range(20):
            assert rounds.acquire(timeout=_PATIENCE_S)
            threading.Event().wait(0.002)  # the loop waits, too
            signal.pthread_kill(service._thread.ident, signal.SIGUSR1)
            end_s = time.monotonic() + 0.02
            while time.monotonic() < end_s:
                pass
        assert rounds.acquire(timeout=_PATIENCE_S)
    finally:
        sys.setswitchinterval(interval_s)
        service.stop()
        signal.signal(signal.SIGUSR1, handler)
