"""Charts for a template: bars and ranges, as text and boxes. The length of a box is a percentage of
the chart's width. Charts fit any width, take the colours of light and dark mode, and work with
screen readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A coloured part of a bar. `series`: number of the series, which determines the colour.
    `start`, `width`: position and width in per cent of the chart's width."""

    series: int
    start: float
    width: float


class Bar(NamedTuple):
    """A bar of a chart. `value`: the text after the bar."""

    label: str
    parts: Sequence[Part]
    value: str


class Chart(NamedTuple):
    """A chart. `series`: names of the colours, empty for one colour. `note`: omitted parts."""

    bars: Sequence[Bar]
    series: Sequence[str] = ()
    note: str = ""


def stack(
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
    texts: Sequence[str],
    *,
    whole: float | None = None,
) -> list[Bar]:
    """Build stacked bars. `values`: for each bar, the value of each series. `whole`: value of the
    full width, or None for the longest bar."""
    longest = max((sum(row) for row in values), default=0.0) if whole is None else whole
    bars = []
    for label, row, text in zip(labels, values, texts, strict=True):
        parts, start = [], 0.0
        for series, value in enumerate(row):
            width = 100 * value / longest if longest > 0 else 0.0
            if width > 0:
                parts.append(Part(series, start, width))
            start += width
        bars.append(Bar(label, parts, text))
    return bars


def ranges(
    labels: Sequence[str], values: Sequence[tuple[float, float, float, float]], texts: Sequence[str]
) -> list[Bar]:
    """Build bars on a logarithmic scale from four values each: minimum, median, a high percentile,
    and maximum. The first piece of a bar ends at the percentile, and a mark shows the median."""
    low = min((row[0] for row in values), default=1.0)
    high = max((row[3] for row in values), default=1.0)
    span = math.log(max(high, 1) / max(low, 1)) or 1.0

    def place(value: float) -> float:
        return 96 * math.log(max(value, 1) / max(low, 1)) / span

    bars = []
    for label, (least, half, nearly_all, most), text in zip(labels, values, texts, strict=True):
        # A piece without length stays visible.
        parts = [
            Part(1, place(least), max(place(most) - place(least), 0) + 4),
            Part(0, place(least), max(place(nearly_all) - place(least), 0) + 2),
            Part(2, place(half), 1.2),
        ]
        bars.append(Bar(label, parts, text))
    return bars
