"""SIGINT and SIGTERM during a run."""

from __future__ import annotations

import signal
import threading

import pytest

from tieredstore.cli.stopping import stop_on_signals


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_the_second_interrupts_the_third_is_the_systems(
    first: signal.Signals, second: signal.Signals
) -> None:
    before = [signal.getsignal(number) for number in (first, second)]
    stop = threading.Event()
    with stop_on_signals(stop):
        signal.raise_signal(first)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert [signal.getsignal(number) for number in (first, second)] == [signal.SIG_DFL] * 2
    assert [signal.getsignal(number) for number in (first, second)] == before
