"""What verbs print: rows or one record, as a table, JSON or newline-delimited JSON."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import BinaryIO, TypeAlias

import orjson

from tieredstore.cli.exits import OutputClosed
from tieredstore.errors import TieredStoreError
from tieredstore.scan.times import format_time

Row: TypeAlias = Mapping[str, object]

_WIDTH_SAMPLE_ROWS = 200
_CELL_CHARACTERS = 100


class OutputFormat(enum.StrEnum):
    """`--output`."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


class Output:
    """Writes to standard output; rows go out as they come, with bounded memory."""

    def __init__(self, format: OutputFormat, stream: BinaryIO | None = None) -> None:
        self.format = format
        self._stream = sys.stdout.buffer if stream is None else stream

    def rows(self, columns: Sequence[str], rows: Iterable[Row]) -> int:
        """Write all rows; a table shows `columns` only, JSON every field. Returns the number of
        rows."""
        match self.format:
            case OutputFormat.TABLE:
                return self._table(columns, rows)
            case OutputFormat.NDJSON:
                return self._write_each(rows, b"", b"\n", b"")
            case OutputFormat.JSON:
                return self._write_each(rows, b"[\n", b",\n", b"\n]\n")

    def record(self, record: Row, lists: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write one record. A table shows one line a field, and the fields named in `lists` (lists
        of rows) as tables of the columns given there."""
        if self.format is not OutputFormat.TABLE:
            self._write(encode(record) + b"\n")
            self.flush()
            return
        tables = lists or {}
        plain = {name: value for name, value in record.items() if name not in tables}
        width = max(map(len, plain), default=0)
        for name, value in plain.items():
            self.line(f"{name:<{width}}  {cell(name, value)}")
        for name, columns in tables.items():
            rows = record[name]
            if isinstance(rows, list) and rows:
                self.line("")
                self._table(columns, rows)
        self.flush()

    def lines(self, lines: Iterable[bytes], *, heads: int = 0) -> int:
        """Write lines. Returns their number without the first `heads`."""
        count = -heads
        for line in lines:
            self._write(line + b"\n")
            count += 1
        self.flush()
        return count

    def line(self, text: str) -> None:
        self._write(text.encode(errors="backslashreplace") + b"\n")

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise OutputClosed from None

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except BrokenPipeError:
            raise OutputClosed from None

    def _write_each(self, rows: Iterable[Row], start: bytes, between: bytes, end: bytes) -> int:
        count = 0
        self._write(start)
        try:
            for row in rows:
                if count and start:
                    self._write(between)
                self._write(encode(row))
                if not start:
                    self._write(between)
                count += 1
        except TieredStoreError:
            # What was found so far is whole JSON; the exit code says that it is not all.
            self._write(end)
            self.flush()
            raise
        self._write(end)
        self.flush()
        return count

    def _table(self, columns: Sequence[str], rows: Iterable[Row]) -> int:
        cells = ([cell(name, row.get(name)) for name in columns] for row in rows)
        sample = list(islice(cells, _WIDTH_SAMPLE_ROWS))
        if not sample:
            self.flush()
            return 0
        heads = list(columns)
        widths = [max(len(line[i]) for line in [heads, *sample]) for i in range(len(columns))]
        right = [_is_number_column(line[i] for line in sample) for i in range(len(columns))]
        count = 0
        for line in chain([heads], sample, cells):
            padded = (
                text.rjust(width) if to_right else text.ljust(width)
                for text, width, to_right in zip(line, widths, right, strict=True)
            )
            self.line("  ".join(padded).rstrip())
            count += 1
        self.flush()
        return count - 1


def _is_number_column(cells: Iterator[str]) -> bool:
    return all(text == "" or text.lstrip("-").replace(".", "", 1).isdigit() for text in cells)


def encode(value: object) -> bytes:
    """Return a value as JSON; strings that are no valid Unicode (foreign file names) are
    escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        import json

        return json.dumps(value, separators=(",", ":")).encode()


def cell(name: str, value: object) -> str:
    """Return one value on one line: times in ISO 8601, control characters escaped, long text
    cut."""
    text = plain_text(name, value)
    if not text.isprintable():
        text = escape(text[: _CELL_CHARACTERS + 1])
    return text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"


def plain_text(name: str, value: object) -> str:
    """Return one value as text: times in ISO 8601, the items of a list behind one another."""
    if value is None:
        return ""
    if name.endswith("timestamp") and isinstance(value, int):
        return format_time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6f}" if name.endswith("_usd") else f"{value:.3f}"
    if isinstance(value, list):
        value = " ".join(map(str, value))
    elif isinstance(value, Mapping):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    return str(value)


def escape(text: str) -> str:
    """Return a text with its control characters escaped, as Python writes them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
