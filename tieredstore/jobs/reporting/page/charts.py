"""Charts as a template draws them: bars and ranges of boxes, whose lengths are shares of a width.

They are text and boxes, so they fit any width, take the colours of light and dark, and can be
read aloud.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A coloured piece. series: its number, from 0; start, width: per cent of the whole width."""

    series: int
    start: float
    width: float


class Bar(NamedTuple):
    """A line of a chart. value: what stands behind it, as text."""

    label: str
    parts: Sequence[Part]
    value: str


class Chart(NamedTuple):
    """series: names of the colours, in their order; empty where there is but one. note: what is not
    drawn."""

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
    """Make bars of pieces behind each other. values: of each bar by series. whole: what the full
    width stands for; None for the longest bar."""
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
    """Make bars from the least to the most, on a scale of logarithms: two pieces, the first up to
    the third value of four (least, half, nearly all, most), with a mark at the second."""
    low = min((row[0] for row in values), default=1.0)
    high = max((row[3] for row in values), default=1.0)
    span = math.log(max(high, 1) / max(low, 1)) or 1.0

    def place(value: float) -> float:
        return 96 * math.log(max(value, 1) / max(low, 1)) / span

    bars = []
    for label, (least, half, nearly_all, most), text in zip(labels, values, texts, strict=True):
        # A piece that is a point is still to be seen.
        parts = [
            Part(1, place(least), max(place(most) - place(least), 0) + 4),
            Part(0, place(least), max(place(nearly_all) - place(least), 0) + 2),
            Part(2, place(half), 1.2),
        ]
        bars.append(Bar(label, parts, text))
    return bars
