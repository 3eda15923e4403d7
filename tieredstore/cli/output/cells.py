"""One value of a row as text: on one line, and as wide as there is room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.scan.human import human_size, human_time, is_size, is_time
from tieredstore.timestamps import format_time

CELL_CHARACTERS: Final = 100
"""Of a table that no terminal shows."""
_MOST_CHARACTERS: Final = 1000
"""Of a value that a terminal may show."""


def cell(name: str, value: object, most: int | None = CELL_CHARACTERS) -> str:
    """Return one value on one line: times in ISO 8601, control characters escaped, and no more
    than so many characters of it."""
    text = plain_text(name, value)
    if not text.isprintable():
        text = escape(text if most is None else text[: most + 1])
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def human_cell(name: str, value: object) -> str:
    """Return one value on one line as people read it: sizes in units, times to the second."""
    if isinstance(value, int) and not isinstance(value, bool):
        if is_size(name):
            return human_size(value)
        if is_time(name):
            return human_time(value)
    return cell(name, value, _MOST_CHARACTERS)


def plain_text(name: str, value: object) -> str:
    """Return one value as text: times in ISO 8601, the items of a list behind one another."""
    if value is None:
        return ""
    if is_time(name) and isinstance(value, int):
        return format_time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6f}" if name.endswith("_usd") else f"{value:.3f}"
    if isinstance(value, list):
        value = " ".join(map(str, value))
    elif isinstance(value, Mapping):
        value = ", ".join(f"{key}={plain_text(key, item)}" for key, item in value.items())
    return str(value)


def escape(text: str) -> str:
    """Return a text with its control characters escaped, as Python writes them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def measure(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int, *, to_right: bool = False) -> str:
    """Return a text with blanks, up to so many cells."""
    blanks = " " * (width - measure(text))
    return blanks + text if to_right else text + blanks


def shorten(text: str, width: int, *, in_the_middle: bool) -> str:
    """Return a text in so many cells: of an id both ends are worth seeing, of another text its
    begin."""
    if measure(text) <= width:
        return text
    last = (width - 1) // 2 if in_the_middle else 0
    end = _take(text[::-1], last)[::-1]
    return f"{_take(text, width - 1 - last)}…{end}"


def wrap(text: str, width: int) -> list[str]:
    """Return a text as lines of so many cells, broken at blanks where a line has one. width: 2 at
    least."""
    lines = []
    while len(text) > width or measure(text) > width:
        end = len(_take(text, width))
        if not text.startswith(" ", end):
            end = text.rfind(" ", 1, end) if " " in text[1:end] else end
        lines.append(text[:end])
        text = text[end:].lstrip(" ")
    return [*lines, text]


def _take(text: str, width: int) -> str:
    """The first characters, as many as fit."""
    if text.isascii():
        return text[:width]
    taken = text[:width]
    while measure(taken) > width:
        taken = taken[:-1]
    return taken
