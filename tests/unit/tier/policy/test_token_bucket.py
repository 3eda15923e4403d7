"""A token bucket limits the bytes per second. The actual rate reaches the limit but never exceeds
it."""

from __future__ import annotations

import threading

import pytest

from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.tier.policy.limits import LOOK_MS, TokenBucket


class Rig:
    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.clock = ManualClock()
        self.stopping = threading.Event()
        self.bucket = TokenBucket(lambda: self.rate, self.clock, self.stopping)


@pytest.mark.parametrize("amount", [1, 10, 99, 100, 250, 3000])
def test_over_time_no_more_than_the_rate_goes_whatever_is_taken_at_once(amount: int) -> None:
    rig = Rig(100)
    begin_ms = rig.clock.monotonic_ms()
    waited_ms = sum(rig.bucket.take(amount) for _ in range(30))
    passed_ms = rig.clock.monotonic_ms() - begin_ms
    assert waited_ms == passed_ms
    # All passed before the last one, less the initial tokens: a second's worth.
    least_ms = (29 * amount - 100) * 10
    assert (
        least_ms <= passed_ms <= max(least_ms, 0) + 31
    )  # a wait is up to 1 ms longer than it must


def test_a_pause_saves_up_a_second_s_worth_and_no_more() -> None:
    rig = Rig(100)
    rig.bucket.take(100)
    rig.clock.advance(3_600_000)
    assert [rig.bucket.take_now(50) for _ in range(4)] == [True, True, False, False]


def test_what_is_larger_than_that_goes_at_once_and_is_paid_by_the_next() -> None:
    rig = Rig(100)
    assert rig.bucket.take(1100) == 0
    assert 10_000 <= rig.bucket.take(1) <= 10_021


def test_what_was_not_used_is_given_back() -> None:
    rig = Rig(100)
    assert rig.bucket.take_now(150)
    rig.bucket.give_back(150)
    assert rig.bucket.take_now(1)


def test_without_a_limit_nothing_waits_and_a_limit_that_comes_owes_nothing() -> None:
    rig = Rig(100)
    rig.bucket.take(1000)
    rig.rate = 0
    assert rig.bucket.take(1 << 40) == 0
    rig.rate = 100
    assert rig.bucket.take(1) == 0


def test_a_wait_sees_soon_that_the_limit_was_raised() -> None:
    rig = Rig(1)
    rig.bucket.take(1000)
    looked: list[int] = []
    wait = rig.clock.wait

    def raise_it(event: threading.Event, timeout_ms: int) -> bool:
        looked.append(timeout_ms)
        rig.rate = 1_000_000
        return wait(event, timeout_ms)

    rig.clock.wait = raise_it  # type: ignore[method-assign]
    assert rig.bucket.take(1) == LOOK_MS
    assert looked == [LOOK_MS]


def test_a_stop_ends_all_waits_and_what_comes_after_it_does_not_wait() -> None:
    stopping = threading.Event()
    waiting = threading.Semaphore(0)

    class Clock(ManualClock):
        def wait(self, event: threading.Event, timeout_ms: int) -> bool:
            waiting.release()
            return event.wait(60)

    bucket = TokenBucket(lambda: 1, Clock(), stopping)
    bucket.take(1_000_000)
    threads = [threading.Thread(target=bucket.take, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert waiting.acquire(timeout=60)
    stopping.set()
    wait_for(lambda: not any(thread.is_alive() for thread in threads))
    assert bucket.take(1) == 0


def test_several_threads_together_get_the_rate() -> None:
    rig = Rig(1000)
    lock = threading.Lock()
    advance = rig.clock.advance

    def advance_alone(delta_ms: int) -> None:
        with lock:
            advance(delta_ms)

    rig.clock.advance = advance_alone  # type: ignore[method-assign]
    threads = [
        threading.Thread(target=lambda: [rig.bucket.take(100) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rig.clock.monotonic_ms() >= (80 * 100 - 1000 - 100)
