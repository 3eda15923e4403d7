"""Tests of clocks, including the one used for expiry."""

from __future__ import annotations

import threading

import pytest

from tieredstore.clock import SETTLE_MS, SYSTEM_CLOCK, ManualClock, RetentionClock

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS


def test_time_passes_and_a_wall_clock_is_set() -> None:
    clock = ManualClock(T0)
    clock.advance_to(T0 + 5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (T0 + 5, 5)
    clock.set(T0)
    assert (clock.now_ms(), clock.monotonic_ms()) == (T0, 5)
    clock.wait(threading.Event(), 10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (T0 + 10, 15)
    assert SYSTEM_CLOCK.monotonic_ms() <= SYSTEM_CLOCK.monotonic_ms()


def test_retention_goes_by_the_wall_clock_while_it_passes_as_time_does() -> None:
    clock = ManualClock(T0)
    retention = RetentionClock(clock)
    for _ in range(100):
        assert retention.now_ms() == clock.now_ms()
        clock.advance(HOUR_MS)
    assert not retention.is_behind


def test_c02_a_jump_ahead_does_not_count_while_it_may_pass() -> None:
    clock = ManualClock(T0)
    retention = RetentionClock(clock)
    retention.begin()
    clock.set(T0 + YEARS_MS)
    for passed_ms in range(0, SETTLE_MS, HOUR_MS):
        assert retention.now_ms() == T0 + passed_ms
        assert retention.is_behind
        clock.advance(HOUR_MS)
    clock.set(T0 + SETTLE_MS)
    assert retention.now_ms() == T0 + SETTLE_MS
    assert not retention.is_behind
    clock.set(T0 + YEARS_MS)  # the time before the break does not count
    assert retention.now_ms() == T0 + SETTLE_MS


def test_a_wall_clock_that_stays_ahead_is_believed_after_a_day() -> None:
    clock = ManualClock(T0)
    retention = RetentionClock(clock)
    retention.begin()
    clock.set(T0 + YEARS_MS)
    assert retention.now_ms() == T0
    clock.advance(SETTLE_MS)
    retention.now_ms()
    assert retention.now_ms() == clock.now_ms()
    assert not retention.is_behind


def test_what_is_believed_is_the_least_that_was_seen() -> None:
    """The retention clock follows a jump of the wall clock only after SETTLE_MS. It does not follow
    a second jump that is more recent."""
    clock = ManualClock(T0)
    retention = RetentionClock(clock)
    retention.begin()
    clock.set(T0 + HOUR_MS)
    retention.now_ms()
    clock.advance(SETTLE_MS)
    clock.set(T0 + YEARS_MS)
    retention.now_ms()
    assert retention.now_ms() == T0 + HOUR_MS + SETTLE_MS


@pytest.mark.parametrize("back_ms", [1, HOUR_MS, YEARS_MS // 20])
def test_c01_a_wall_clock_that_goes_back_is_followed_at_once(back_ms: int) -> None:
    clock = ManualClock(T0)
    retention = RetentionClock(clock)
    retention.begin()
    clock.set(T0 - back_ms)
    assert retention.now_ms() == T0 - back_ms
    clock.set(T0)
    assert retention.now_ms() == T0


def test_it_begins_at_the_newest_message() -> None:
    clock = ManualClock(T0 + YEARS_MS)  # the machine woke up with a wrong clock
    retention = RetentionClock(clock)
    retention.begin(T0)
    assert retention.now_ms() == T0
    retention.begin(T0 + 2 * YEARS_MS)  # a message of the future
    assert retention.now_ms() == T0 + YEARS_MS
    retention.begin(-1)
    assert retention.now_ms() == T0 + YEARS_MS
