"""The terminal that standard output is, if it is one: how wide, and whether it has colours."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import BinaryIO, Final

_BOLD: Final = "1"
_RED: Final = "31"
_GREEN: Final = "32"
_YELLOW: Final = "33"
_STYLES: Final = {
    **dict.fromkeys(("ok", "up"), _GREEN),
    **dict.fromkeys(("note", "warning", "degraded", "unknown"), _YELLOW),
    **dict.fromkeys(("unsafe", "damage", "damaged", "error"), _RED),
}
"""Word -> how it is shown, in a column of `_COLOURED`."""
_COLOURED: Final = frozenset({"verdict", "severity", "status", "level"})
_FEWEST_CELLS: Final = 40


@dataclass(frozen=True, slots=True)
class Screen:
    """width: in cells, of which a Chinese character takes two."""

    width: int
    has_colours: bool = False

    def show_head(self, text: str) -> str:
        """Return the head of a table as it stands out."""
        return self._style(text, _BOLD)

    def show_cell(self, name: str, text: str, padded: str) -> str:
        """Return a padded cell, in the colour of what its text means in a column of this name."""
        style = _STYLES.get(text) if name in _COLOURED else None
        return padded if style is None else self._style(padded, style)

    def _style(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self.has_colours and text else text


def find_screen(stream: BinaryIO) -> Screen | None:
    """Return the terminal behind a stream, None where there is none. Colours: unless NO_COLOR is
    set, or the terminal is a dumb one."""
    if not stream.isatty():
        return None
    width = max(shutil.get_terminal_size().columns, _FEWEST_CELLS)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Screen(width, has_colours=not plain)
