"""Rows as the lines of a table, and the fields of a record as lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

from tieredstore.cli.output.cells import (
    CELL_CHARACTERS,
    cell,
    human_cell,
    measure,
    pad,
    shorten,
    wrap,
)
from tieredstore.cli.output.fitting import Column, fit, is_long_text, measure_columns
from tieredstore.cli.output.screen import Screen
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
"""Of columns whose rows are not known when the head is written."""
_EXACT_TIME: Final = 24


class Table:
    """Lays rows out in columns. screen: the terminal that it is made to fit; without one times and
    sizes are exact, and cells cut at `CELL_CHARACTERS` unless `is_whole`."""

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
        self._most = None if is_whole else CELL_CHARACTERS
        self._keeps_all = keeps_all
        self.left_out: list[str] = []
        """Columns for which there was no room."""
        self.head_lines = 0
        self.is_too_wide = False
        """Whether lines go on in the next one of the terminal."""
        self._texts: frozenset[str] = frozenset()

    def lines(self, rows: Iterable[Row], *, sample_rows: int) -> Iterator[str]:
        """Yield the head and a line for each row, nothing without a row. sample_rows: so many are
        looked at for the widths; of 0 these are the usual ones."""
        rows = iter(rows)
        first = list(islice(rows, max(sample_rows, 1)))
        if not first:
            return
        sample = [[self._text(name, row.get(name)) for name in self._names] for row in first]
        to_right = [_is_number_column(name, first, place, sample) for place, name in self._places()]
        columns = self._choose_columns(first, sample, is_known=bool(sample_rows))
        yield from self._head(columns, to_right)
        texts = chain(
            sample, ([self._text(name, row.get(name)) for name in self._names] for row in rows)
        )
        for line in texts:
            yield self._line(columns, line, to_right)

    def _places(self) -> Iterable[tuple[int, str]]:
        return enumerate(self._names)

    def _text(self, name: str, value: object) -> str:
        return cell(name, value, self._most) if self._screen is None else human_cell(name, value)

    def _choose_columns(
        self, rows: Sequence[Row], sample: Sequence[Sequence[str]], *, is_known: bool
    ) -> list[Column]:
        size = len if self._screen is None else measure
        widths = [max(map(size, column)) for column in zip(*sample, strict=True)]
        if not is_known:
            for place, name in self._places():
                is_long_time = is_time(name) and self._screen is None
                usual = _EXACT_TIME if is_long_time else _USUAL_WIDTHS.get(name, 0)
                widths[place] = max(widths[place], usual)
        if self._screen is None:
            return [
                Column(place, (name,), max(widths[place], len(name)))
                for place, name in self._places()
            ]
        self._texts = frozenset(name for name in self._names if _is_text_column(name, rows))
        found = fit(self._names, widths, self._texts, self._screen.width, keeps_all=self._keeps_all)
        shown = {column.place for column in found}
        self.left_out = [name for place, name in self._places() if place not in shown]
        self.is_too_wide = measure_columns(found) > self._screen.width
        return found

    def _head(self, columns: Sequence[Column], to_right: Sequence[bool]) -> Iterator[str]:
        self.head_lines = max(len(column.head) for column in columns)
        for number in range(self.head_lines):
            cells = []
            for column in columns:
                above = self.head_lines - len(column.head)
                text = column.head[number - above] if number >= above else ""
                cells.append(pad(text, column.width, to_right=to_right[column.place]))
            line = _GAP.join(cells).rstrip()
            yield line if self._screen is None else self._screen.show_head(line)

    def _line(
        self, columns: Sequence[Column], texts: Sequence[str], to_right: Sequence[bool]
    ) -> str:
        if self._screen is None:
            cells = (
                text.rjust(column.width) if to_right[column.place] else text.ljust(column.width)
                for column, text in zip(columns, texts, strict=True)
            )
            return _GAP.join(cells).rstrip()
        shown = []
        for column in columns:
            name, text = self._names[column.place], texts[column.place]
            is_right = to_right[column.place]
            if name in self._texts:
                text = shorten(text, column.width, in_the_middle=not is_long_text(name))
            padded = pad(text, column.width, to_right=is_right)
            shown.append(self._screen.show_cell(name, text, padded))
        return _GAP.join(shown).rstrip()


def field_lines(fields: Row, screen: Screen | None, *, is_whole: bool = False) -> Iterator[str]:
    """Yield a line for each field of a record. On a terminal a long value goes on below itself, and
    one that is null or an empty list has no line."""
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
        room = max(screen.width - head - len(_GAP), 20)
        for number, part in enumerate(wrap(text, room)):
            start = screen.show_head(name) + " " * (head - len(name)) if not number else " " * head
            yield f"{start}{_GAP}{screen.show_cell(name, text, part)}"


def _is_text_column(name: str, rows: Sequence[Row]) -> bool:
    """Whether values may be cut; an id of digits alone is no number, and a time is whole."""
    values = (row.get(name) for row in rows)
    return not is_time(name) and any(isinstance(value, str | list | Mapping) for value in values)


def _is_number_column(
    name: str, rows: Sequence[Row], place: int, sample: Sequence[Sequence[str]]
) -> bool:
    values = [row.get(name) for row in rows]
    if is_size(name):
        return all(value is None or isinstance(value, int) for value in values)
    texts = (line[place] for line in sample)
    return all(text == "" or text.lstrip("-").replace(".", "", 1).isdigit() for text in texts)
