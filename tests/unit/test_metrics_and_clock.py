"""Tests of the metrics registry and of manual clocks."""

from __future__ import annotations

import threading

import pytest

from tieredstore import metrics
from tieredstore.clock import ManualClock
from tieredstore.metrics import Histogram, Metrics


def test_counters_add_and_gauges_replace() -> None:
    registry = Metrics()
    registry.count("c", 2, topic="a")
    registry.count("c", 3, topic="a")
    registry.gauge("g", 1)
    registry.gauge("g", 7)
    assert registry.value("c", topic="a") == 5
    assert registry.value("c", topic="b") == 0
    assert registry.value("g") == 7


def test_histograms_count_by_upper_bound() -> None:
    registry = Metrics()
    for value in (1, 2, 3, 4000):
        registry.observe("h", value, operation="read")
    [(name, labels, histogram)] = list(registry.snapshot())
    assert (name, labels) == ("h", (("operation", "read"),))
    assert isinstance(histogram, Histogram)
    assert histogram.counts[:2] == [1, 2]
    assert histogram.counts[-1] == 1
    assert histogram.total == 4006


def test_label_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_LABEL_SETS", 2)
    registry = Metrics()
    for topic in "abcd":
        registry.count("c", topic=topic)
    assert registry.value("c", overflow="true") == 2
    assert len(list(registry.snapshot())) == 3


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    assert clock.wait(threading.Event(), 20) is False
    assert clock.now_ms() == 1020
    stopped = threading.Event()
    stopped.set()
    assert clock.wait(stopped, 20) is True
    assert clock.now_ms() == 1020
