"""Tests of signals received while a command is running."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tieredstore.cli.stopping import stop_on_signals


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal_that_is_closed_asks_and_never_interrupts(first: signal.Signals) -> None:
    stop, received = threading.Event(), list[int]()
    with stop_on_signals(stop, received):
        for number in (first, signal.SIGHUP, signal.SIGHUP):
            signal.raise_signal(number)
        assert stop.is_set()
    assert received == [first, signal.SIGHUP, signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_nohup_keeps_its_meaning() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = threading.Event()
    with stop_on_signals(stop):
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_set()
