"""Tables and records as lines that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, TypeAlias

from tieredstore.cli.output.cells import (
    CELL_CHARACTERS,
    Screen,
    cell,
    human_cell,
    measure,
    pad,
    shorten,
    wrap,
)
from tieredstore.scan.human import human_age, human_size, is_size, is_time

Row: TypeAlias = Mapping[str, object]

_GAP: Final = "  "
_USUAL_WIDTHS: Final = {
    "topic": 20,
    "queue_id": 8,
    "queue_offset": 12,
    "store_timestamp": 19,
    "born_timestamp": 19,
    "tags": 12,
    "keys": 20,
    "msg_id": 32,
    "body": 60,
}
"""Default widths of columns, used if the header is written before any row is known."""
_EXACT_TIME: Final = 24
_LONG_TEXTS: Final = frozenset(
    {"body", "found", "meaning", "problem", "problems", "error", "message", "value", "target"}
)
"""Columns whose text may be shortened. The last of them in a table gets the remaining width."""
_LEAST_OF_LONG: Final = 20
_STEPS: Final = (
    (12, (None, "segments", "min_store_timestamp", "msg_id", "begin_timestamp")),
    (8, (None, "max_store_timestamp", "end_timestamp")),
)
"""Steps that narrow a table, in order. Each has a minimum width for ids and names, and the columns
to omit at this width (None: no column yet)."""


class _Column(NamedTuple):
    """Column of a table. `place`: position in the row. `width`: number of terminal cells.
    `is_right`: True to align values to the right. `is_text`: True if values may be shortened."""

    place: int
    name: str
    width: int
    is_right: bool
    is_text: bool
    head: tuple[str, ...] = ()

    def with_head(self, *, is_broken: bool) -> _Column:
        """Return a copy of the column with a header. `is_broken`: True to break a header that is
        wider than the values into two lines."""
        head: tuple[str, ...] = (self.name,)
        if is_broken and len(self.name) > self.width:
            words = self.name.split("_")
            halves = [("_".join(words[:i]), "_".join(words[i:])) for i in range(1, len(words))]
            head = min(halves, key=lambda lines: max(map(len, lines)), default=head)
        return self._replace(head=head, width=max(self.width, *map(len, head)))

    def narrow(self, cells: int, least: int) -> _Column:
        """Return the column narrowed by up to `cells`, but not below its header and its minimum
        width (`least`)."""
        least = max(min(least, self.width), *map(len, self.head))
        return self._replace(width=max(self.width - max(cells, 0), least))


class Table:
    """Table fitted to the terminal. If the output is not a terminal, times and sizes are exact, and
    cells are shortened to `CELL_CHARACTERS` unless `is_whole`. `left_out`: columns that did not
    fit. `is_too_wide`: True if lines are wider than the terminal."""

    def __init__(
        self,
        names: Sequence[str],
        screen: Screen | None,
        *,
        is_whole: bool = False,
        keeps_all: bool = False,
    ) -> None:
        self._names = tuple(names)
        self._screen = screen
        self._measure = len if screen is None else measure
        self._most = None if is_whole else CELL_CHARACTERS
        self._keeps_all = keeps_all
        self.left_out: list[str] = []
        self.head_lines = 0
        self.is_too_wide = False

    def lines(self, rows: Iterable[Row], *, sample_rows: int) -> Iterator[str]:
        """Yield the header and a line for each row, or nothing if there are no rows. `sample_rows`:
        number of rows used to choose the widths, or 0 for default widths."""
        rows = iter(rows)
        first = list(islice(rows, max(sample_rows, 1)))
        if not first:
            return
        sample = [self._texts(row) for row in first]
        columns = [
            self._make_column(place, name, [row.get(name) for row in first], texts)
            for place, (name, texts) in enumerate(
                zip(self._names, zip(*sample, strict=True), strict=True)
            )
        ]
        if not sample_rows:
            columns = [
                column._replace(width=max(column.width, self._usual_width(column.name)))
                for column in columns
            ]
        columns = self._fit(columns)
        self.head_lines = max(len(column.head) for column in columns)
        heads = [("",) * (self.head_lines - len(column.head)) + column.head for column in columns]
        for texts in zip(*heads, strict=True):
            cells = zip(columns, texts, strict=True)
            line = _GAP.join(pad(text, c.width, len, to_right=c.is_right) for c, text in cells)
            yield line.rstrip() if self._screen is None else self._screen.show_head(line.rstrip())
        for row in chain(sample, map(self._texts, rows)):
            yield self._line(columns, row)

    def _texts(self, row: Row) -> list[str]:
        if self._screen is None:
            return [cell(name, row.get(name), self._most) for name in self._names]
        return [human_cell(name, row.get(name)) for name in self._names]

    def _make_column(
        self, place: int, name: str, values: Sequence[object], texts: Sequence[str]
    ) -> _Column:
        if is_size(name):
            is_right = all(value is None or isinstance(value, int) for value in values)
        else:
            digits = (text.lstrip("-").replace(".", "", 1) for text in texts if text)
            is_right = all(text.isdigit() for text in digits)
        # An id of digits alone is no number, and a time is never cut.
        has_text = any(isinstance(value, str | list | Mapping) for value in values)
        width = max(map(self._measure, texts))
        return _Column(place, name, width, is_right, has_text and not is_time(name))

    def _usual_width(self, name: str) -> int:
        is_long = is_time(name) and self._screen is None
        return _EXACT_TIME if is_long else _USUAL_WIDTHS.get(name, 0)

    def _fit(self, columns: Sequence[_Column]) -> list[_Column]:
        """Return the columns that fit, with their widths. To make the table fit, breaks headers
        into two lines, then shortens the last long text, then the widest texts, and finally omits
        columns. Numbers and times are never shortened, so a table may still be too wide."""
        whole = [column.with_head(is_broken=False) for column in columns]
        if self._screen is None or _measure_line(whole) <= self._screen.width:
            return whole
        room = self._screen.width
        columns = [column.with_head(is_broken=True) for column in columns]
        for least, leaving in ((least, name) for least, names in _STEPS for name in names):
            if leaving is not None and not self._keeps_all:
                columns = [column for column in columns if column.name != leaving]
            found = _shrink(columns, room, least)
            if _measure_line(found) <= room:
                break
        shown = {column.place for column in found}
        self.left_out = [name for place, name in enumerate(self._names) if place not in shown]
        self.is_too_wide = _measure_line(found) > room
        return found

    def _line(self, columns: Sequence[_Column], texts: Sequence[str]) -> str:
        shown = []
        for column in columns:
            text = texts[column.place]
            if self._screen is not None and column.is_text:
                text = shorten(text, column.width, in_the_middle=column.name not in _LONG_TEXTS)
            padded = pad(text, column.width, self._measure, to_right=column.is_right)
            if self._screen is not None:
                padded = self._screen.show_cell(column.name, text, padded)
            shown.append(padded)
        return _GAP.join(shown).rstrip()


def _measure_line(columns: Sequence[_Column]) -> int:
    return sum(column.width + len(_GAP) for column in columns) - len(_GAP)


def _shrink(columns: Sequence[_Column], room: int, least: int) -> list[_Column]:
    found = list(columns)
    able = [number for number, column in enumerate(found) if column.is_text]
    long = [number for number in able if found[number].name in _LONG_TEXTS]
    if long:
        found[long[-1]] = found[long[-1]].narrow(_measure_line(found) - room, _LEAST_OF_LONG)
    while _measure_line(found) > room:
        able = [number for number in able if found[number].narrow(1, least) != found[number]]
        if not able:
            break
        widest = max(able, key=lambda number: found[number].width)
        found[widest] = found[widest].narrow(1, least)
    return found


def field_lines(fields: Row, screen: Screen | None, *, is_whole: bool = False) -> Iterator[str]:
    """Yield a line for each field of a record. On a terminal, long values continue on the next
    lines, and null and empty lists are omitted."""
    head = max(map(len, fields), default=0)
    for name, value in fields.items():
        if screen is None:
            text = cell(name, value, None if is_whole else CELL_CHARACTERS)
            yield f"{name:<{head}}{_GAP}{text}"
            continue
        if value is None or value == []:
            continue
        text = cell(name, value, None)
        if is_size(name) and isinstance(value, int) and value >= 1000:
            text = f"{value:,} ({human_size(value)})"
        elif name.endswith("seconds") and isinstance(value, int | float) and value >= 120:
            text = f"{text} ({human_age(int(value * 1000))})"
        start = screen.show_head(name) + " " * (head - len(name))
        for part in wrap(text, max(screen.width - head - len(_GAP), 20)):
            yield f"{start}{_GAP}{screen.show_cell(name, text, part)}"
            start = " " * head
