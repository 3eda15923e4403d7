"""What counters and histograms have grown by since a receiver has got them (metricsInDelta)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tieredstore.broker.operations.exporter import Series
from tieredstore.metrics import Histogram, Labels

_Key: TypeAlias = tuple[str, Labels]


class Deltas:
    """Remembers what was sent. What a receiver has not taken is part of the next growth."""

    def __init__(self) -> None:
        self._sent: dict[_Key, float | Histogram] = {}

    def subtract(self, series: Sequence[Series]) -> list[Series]:
        """Return the series with the growth of those that count, and gauges as they are."""
        return [
            one._replace(value=_subtract(one.value, self._sent.get(_find_key(one))))
            for one in series
        ]

    def note_sent(self, series: Sequence[Series]) -> None:
        """Take these series, as they were before `subtract`, for sent."""
        self._sent = {_find_key(one): one.value for one in series if one.counts}


def _find_key(one: Series) -> _Key:
    return one.name, tuple(one.labels.items())


def _subtract(value: float | Histogram, sent: float | Histogram | None) -> float | Histogram:
    """A value that is smaller than what was sent has begun again."""
    if sent is None:
        return value
    if isinstance(value, Histogram) and isinstance(sent, Histogram):
        counts = [now - before for now, before in zip(value.counts, sent.counts, strict=True)]
        if value.bounds != sent.bounds or min(counts) < 0:
            return value
        return Histogram(value.bounds, counts, value.total - sent.total)
    if isinstance(value, Histogram) or isinstance(sent, Histogram):
        return value
    return value - sent if value >= sent else value
