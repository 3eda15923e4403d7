"""Tests of the curve of a queue's message count over time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.advise import steady_arrivals
from tieredstore.jobs.advising.workload import Arrivals

STEADY = steady_arrivals(1_000, 100, 50, 11_000)


def test_a_steady_queue_gets_its_first_message_at_its_begin() -> None:
    counts = STEADY.count_until(np.array([999.0, 1_000.0, 1_099.0, 1_100.0, 11_000.0]))
    assert counts.tolist() == [0, 1, 1, 2, 101]
    assert [STEADY.time_of(offset) for offset in (0, 1, 100)] == [1_000, 1_100, 11_000]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_a_message_has_come_at_its_time_and_not_before(counts: list[int]) -> None:
    times = np.arange(len(counts) + 1, dtype=np.float64) * 1_000
    curve = Arrivals(times, np.concatenate([[0], np.cumsum(counts)]).astype(np.float64), 10)
    for offset in range(int(curve.messages)):
        time_ms = curve.time_of(offset)
        assert curve.count_until(np.array([time_ms + 0.01]))[0] >= offset + 1
        assert curve.count_until(np.array([time_ms - 1.01]))[0] <= offset + 1


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_curve_that_goes_on_as_it_was_has_its_rate(turns: int) -> None:
    curve = Arrivals(np.array([0.0, 10, 20]), np.array([5.0, 6, 16]), 10)
    longer = curve.repeat(20 * turns)
    assert longer.messages == turns * curve.messages
    assert longer.messages_per_s == pytest.approx(curve.messages_per_s)
    assert longer.smooth().messages == longer.messages


def test_bursts_are_not_steady() -> None:
    times = np.arange(11, dtype=np.float64)
    assert Arrivals(times, times * 7, 10).is_steady
    bursts = Arrivals(times, np.concatenate([np.zeros(9), [50, 100]]), 10)
    assert not bursts.is_steady
    assert bursts.active_share == pytest.approx(0.2)
