"""Counters, gauges and histograms with Java's names. Exporters read `snapshot()`.

Names and labels are those of Java's tiered module (`rocketmq_tiered_store_…`). Metrics that only
this project has begin with `rocketmq_tiered_store_x_`. The number of label sets of a metric is
limited. Label sets beyond `MAX_LABEL_SETS` are counted together, with the label `overflow="true"`.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

MAX_LABEL_SETS = 10_000
LATENCY_BUCKETS_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
BYTES_BUCKETS = tuple(n << 10 for n in (1, 10, 100, 1024, 10 << 10, 32 << 10, 50 << 10, 100 << 10))

Labels = tuple[tuple[str, str], ...]
_Value = TypeVar("_Value")
_OVERFLOW: Labels = (("overflow", "true"),)


@dataclass(slots=True)
class Histogram:
    """Distribution of observations. `bounds`: ascending upper bounds. `counts[i]`: number of
    observations above `bounds[i-1]` and at most `bounds[i]`. The last count is for observations
    above all bounds."""

    bounds: tuple[int, ...]
    counts: list[int]
    total: float = 0.0


class Metrics:
    """Registry of one store's metrics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def count(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add to a counter."""
        with self._lock:
            series = self._values.setdefault(name, {})
            key = _key(series, labels)
            series[key] = series.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Set a gauge."""
        with self._lock:
            series = self._values.setdefault(name, {})
            series[_key(series, labels)] = value

    def replace(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Replace all series of a counter or gauge with one label. `values`: new values, by value
        of the label."""
        with self._lock:
            series: dict[Labels, float] = {}
            for value_of_label, value in values.items():
                key = _key(series, {label: value_of_label})
                series[key] = series.get(key, 0) + value if key is _OVERFLOW else value
            self._values[name] = series

    def copy_from(self, other: Metrics) -> None:
        """Copy every series of another registry into this one."""
        for name, labels, value in other.snapshot():
            if isinstance(value, Histogram):
                self.set_histogram(name, value, **dict(labels))
            else:
                self.gauge(name, value, **dict(labels))

    def set_histogram(self, name: str, histogram: Histogram, **labels: object) -> None:
        """Set a histogram of observations that the caller has already counted."""
        with self._lock:
            series = self._histograms.setdefault(name, {})
            series[_key(series, labels)] = histogram

    def observe(
        self,
        name: str,
        value: float,
        bounds: tuple[int, ...] = LATENCY_BUCKETS_MS,
        **labels: object,
    ) -> None:
        """Add one observation to a histogram."""
        key = _sort_labels(**labels)
        with self._lock:
            series = self._histograms.setdefault(name, {})
            histogram = series.get(key)
            if histogram is None:  # a new series, or one label set too many
                new = Histogram(bounds, [0] * (len(bounds) + 1))
                histogram = series.setdefault(_key(series, labels), new)
            histogram.counts[bisect.bisect_left(histogram.bounds, value)] += 1
            histogram.total += value

    def value(self, name: str, **labels: object) -> float:
        """Return the current value of a counter or gauge, or 0 if it was never set."""
        with self._lock:
            return self._values.get(name, {}).get(_sort_labels(**labels), 0)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drop the series of deleted topics. `is_gone`: returns whether to drop a series, given its
        label `topic`, or its label `path` (a queue in a tier) if it has no topic."""
        with self._lock:
            for values in self._values.values():
                _drop(values, is_gone)
            for histograms in self._histograms.values():
                _drop(histograms, is_gone)

    def snapshot(self) -> Iterator[tuple[str, Labels, float | Histogram]]:
        """Yield copies of all series."""
        with self._lock:
            rows: list[tuple[str, Labels, float | Histogram]] = [
                (name, labels, value)
                for name, series in self._values.items()
                for labels, value in series.items()
            ]
            rows += [
                (name, labels, Histogram(h.bounds, list(h.counts), h.total))
                for name, series_h in self._histograms.items()
                for labels, h in series_h.items()
            ]
        return iter(rows)


@lru_cache(MAX_LABEL_SETS)
def _sort_labels(**labels: object) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))


def _key(series: Mapping[Labels, object], labels: Mapping[str, object]) -> Labels:
    key = _sort_labels(**labels)
    return key if len(series) < MAX_LABEL_SETS or key in series else _OVERFLOW


def _drop(series: dict[Labels, _Value], is_gone: Callable[[str], bool]) -> None:
    for labels in list(series):
        named = dict(labels)
        if is_gone(named.get("topic", named.get("path", ""))):
            del series[labels]
