"""How wide the columns of a table are where there is only so much room."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

_GAP: Final = 2
_LONG_TEXTS: Final = frozenset(
    {"body", "found", "meaning", "problem", "problems", "error", "message", "value", "target"}
)
"""Columns whose texts are cut at their ends. The last of them takes what the others leave."""
_LEAST_OF_LONG: Final = 20
_LEAST: Final = 12
_LEAST_OF_ALL: Final = 8
"""Of ids and names where even columns that went made too little room."""
_EXPENDABLE: Final = ("segments", "min_store_timestamp", "msg_id", "begin_timestamp")
"""Columns that go, in this order, where shortening is not enough."""
_LAST_EXPENDABLE: Final = ("max_store_timestamp", "end_timestamp")
"""Those that go when names are as short as they get."""


class Column(NamedTuple):
    """One column that is shown: its place in the row, the lines of its head, its width."""

    place: int
    head: tuple[str, ...]
    width: int


def is_long_text(name: str) -> bool:
    """Tell whether the texts of a column are cut at their ends, and not in the middle."""
    return name in _LONG_TEXTS


def fit(
    names: Sequence[str],
    widths: Sequence[int],
    texts: Collection[str],
    room: int,
    *,
    keeps_all: bool,
) -> list[Column]:
    """Choose the columns that are shown in `room` cells, and their widths. In this order, as far as
    it is needed: heads break into two lines, the last long text is cut, the widest texts are, some
    columns go, ids and names are cut still shorter, the last times go. Numbers and times are never
    cut: a table may still be wider.

    widths: of the contents, without the heads. texts: the columns that may be cut. keeps_all:
    whether each column was asked for.
    """
    whole = [
        Column(place, (name,), max(width, len(name)))
        for place, (name, width) in enumerate(zip(names, widths, strict=True))
    ]
    if measure_columns(whole) <= room:
        return whole
    columns = []
    for place, (name, width) in enumerate(zip(names, widths, strict=True)):
        head = _break(name) if len(name) > width else (name,)
        columns.append(Column(place, head, max(width, *map(len, head))))
    steps = [(_LEAST, None), *((_LEAST, name) for name in _EXPENDABLE)]
    steps += [(_LEAST_OF_ALL, None), *((_LEAST_OF_ALL, name) for name in _LAST_EXPENDABLE)]
    for least, leaving in steps:
        if leaving is not None and not keeps_all:
            columns = [column for column in columns if names[column.place] != leaving]
        shrunk = _shrink(columns, names, texts, room, least)
        if measure_columns(shrunk) <= room:
            break
    return shrunk


def measure_columns(columns: Sequence[Column]) -> int:
    """Return how many cells a line of these columns takes."""
    return sum(column.width + _GAP for column in columns) - _GAP


def _break(name: str) -> tuple[str, ...]:
    """A head as two lines that are about as long."""
    words = name.split("_")
    halves = [("_".join(words[:i]), "_".join(words[i:])) for i in range(1, len(words))]
    return min(halves, key=lambda lines: max(map(len, lines)), default=(name,))


def _shrink(
    columns: Sequence[Column],
    names: Sequence[str],
    texts: Collection[str],
    room: int,
    least: int,
) -> list[Column]:
    found = list(columns)
    able = [number for number, column in enumerate(found) if names[column.place] in texts]
    long = [number for number in able if is_long_text(names[found[number].place])]
    if long:
        found[long[-1]] = _narrow(found[long[-1]], measure_columns(found) - room, _LEAST_OF_LONG)
    while measure_columns(found) > room:
        able = [number for number in able if _narrow(found[number], 1, least) != found[number]]
        if not able:
            break
        widest = max(able, key=lambda number: found[number].width)
        found[widest] = _narrow(found[widest], 1, least)
    return found


def _narrow(column: Column, cells: int, least: int) -> Column:
    """A column with so many cells less, as far as head and least width allow it."""
    least = max(min(least, column.width), *map(len, column.head))
    return column._replace(width=max(column.width - max(cells, 0), least))
