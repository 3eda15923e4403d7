"""Formatting of row values as text on one line, and detection of the terminal's width and
colours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

from tieredstore.scan.human import human_size, human_time, is_size, is_time
from tieredstore.timestamps import format_time

CELL_CHARACTERS: Final = 100
"""Maximum number of characters of a cell if the output is not a terminal."""
_MOST_CHARACTERS: Final = 1000
"""Maximum number of characters of a cell on a terminal."""


def cell(name: str, value: object, most: int | None = CELL_CHARACTERS) -> str:
    """Return a value on one line, shortened to `most` characters (None: no limit). Times are in ISO
    8601, and control characters are escaped."""
    text = plain_text(name, value)
    if not text.isprintable():
        text = escape(text if most is None else text[: most + 1])
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def human_cell(name: str, value: object) -> str:
    """Return a value on one line in human-readable form: sizes with units, times to the second."""
    if isinstance(value, int) and not isinstance(value, bool):
        if is_size(name):
            return human_size(value)
        if is_time(name):
            return human_time(value)
    return cell(name, value, _MOST_CHARACTERS)


def plain_text(name: str, value: object) -> str:
    """Return a value as text. Times are in ISO 8601, and list items are separated by spaces."""
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
    """Escape control characters as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def measure(text: str) -> int:
    """Return the width of a string in terminal cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int, size: Callable[[str], int], *, to_right: bool = False) -> str:
    """Pad a string with spaces to `width`. `size`: returns the width of a string. `to_right`: True
    to put the spaces first."""
    blanks = " " * (width - size(text))
    return blanks + text if to_right else text + blanks


def shorten(text: str, width: int, *, in_the_middle: bool) -> str:
    """Shorten a string to `width` terminal cells. `in_the_middle`: True to keep both ends, as for
    ids. Otherwise only the start is kept."""
    if measure(text) <= width:
        return text
    last = (width - 1) // 2 if in_the_middle else 0
    end = _take(text[::-1], last)[::-1]
    return f"{_take(text, width - 1 - last)}…{end}"


def wrap(text: str, width: int) -> list[str]:
    """Wrap a string into lines of at most `width` terminal cells (2 or more), at spaces if
    possible."""
    lines = []
    while len(text) > width or measure(text) > width:
        end = len(_take(text, width))
        if not text.startswith(" ", end):
            end = text.rfind(" ", 1, end) if " " in text[1:end] else end
        lines.append(text[:end])
        text = text[end:].lstrip(" ")
    return [*lines, text]


def _take(text: str, width: int) -> str:
    taken = text[:width]
    while measure(taken) > width:
        taken = taken[:-1]
    return taken


_BOLD: Final = "1"
_RED: Final = "31"
_GREEN: Final = "32"
_YELLOW: Final = "33"
_STYLES: Final = {
    **dict.fromkeys(("ok", "up"), _GREEN),
    **dict.fromkeys(("note", "warning", "degraded", "unknown"), _YELLOW),
    **dict.fromkeys(("unsafe", "damage", "damaged", "error"), _RED),
}
"""Colour of a word, for the columns in `_COLOURED`."""
_COLOURED: Final = frozenset({"verdict", "severity", "status", "level"})
_FEWEST_CELLS: Final = 40


@dataclass(frozen=True, slots=True)
class Screen:
    """Terminal. `width`: number of cells per line. A Chinese character takes two cells."""

    width: int
    has_colours: bool = False

    def show_head(self, text: str) -> str:
        """Return the header of a table in bold."""
        return self._style(text, _BOLD)

    def show_cell(self, name: str, text: str, padded: str) -> str:
        """Return a padded cell, coloured by its text if the column (`name`) has colours."""
        style = _STYLES.get(text) if name in _COLOURED else None
        return padded if style is None else self._style(padded, style)

    def _style(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.has_colours and text else text


def find_screen(stream: BinaryIO) -> Screen | None:
    """Return the terminal behind a stream, or None. Colours are disabled if NO_COLOR is set or the
    terminal does not support them."""
    if not stream.isatty():
        return None
    width = max(shutil.get_terminal_size().columns, _FEWEST_CELLS)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Screen(width, has_colours=not plain)
