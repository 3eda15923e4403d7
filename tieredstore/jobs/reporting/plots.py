"""Bar charts as SVG that a page takes in: text and lines have the colour of the page's text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_INK = "#010203"
"""Stands for the text's colour until the drawing is done."""
_COLOURS = ("#3b82c4", "#d9822b", "#4a9d5b", "#a05ec2")
"""To be seen on white and on black."""
_LABEL_CHARACTERS = 40
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "font.family": "sans-serif",
    "font.size": 10,
}


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    unit: str,
    *,
    stacked: bool = True,
    is_log: bool = False,
) -> str:
    """Return an `<svg>` element: one bar a label, its series stacked or beside each other."""
    with mpl.rc_context(_STYLE | {"svg.hashsalt": unit}):
        figure = Figure(figsize=(9, 0.9 + 0.34 * len(labels)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        height = 0.7 if stacked else 0.7 / len(series)
        floor = [0.0] * len(labels)
        for number, (name, values) in enumerate(series.items()):
            shift = 0.0 if stacked else (number - (len(series) - 1) / 2) * height
            places = [place + shift for place in range(len(labels))]
            colour = _COLOURS[number % len(_COLOURS)]
            axes.barh(places, values, height, floor, label=name, color=colour)
            if stacked:
                floor = [low + value for low, value in zip(floor, values, strict=True)]
        axes.set_yticks(range(len(labels)), list(map(_label, labels)))
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlabel(unit)
        if is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.xaxis.set_minor_formatter("")
        axes.grid(axis="x", alpha=0.2)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False)
        for patch in (figure.patch, axes.patch):
            patch.set_visible(False)
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return _inline_svg(written.getvalue())


def _label(text: str) -> str:
    """What every font has: the tables beside the plots have the names themselves."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _LABEL_CHARACTERS else plain[: _LABEL_CHARACTERS - 3] + "..."


def _inline_svg(svg: str) -> str:
    """The element alone, without comments and without names that other drawings have as well."""
    found = svg[svg.index("<svg") :]
    found = re.sub(r"<!--.*?-->", "", found, flags=re.DOTALL)
    found = re.sub(r'<g id="[^"]*"', "<g", found)
    return found.replace(_INK, "currentColor")
