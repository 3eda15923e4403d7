"""What verbs print: rows or one record, as a table, JSON or newline-delimited JSON."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import BinaryIO, Final

import orjson

from tieredstore.cli.exits import OutputClosed
from tieredstore.cli.logs.saying import say
from tieredstore.cli.output.screen import find_screen
from tieredstore.cli.output.table import Row, Table, field_lines
from tieredstore.errors import TieredStoreError

MOST_ROWS: Final = 50
"""Of a table that may have one for each queue of a tier; what is behind them is said in a line."""
_WIDTH_SAMPLE_ROWS = 200


class OutputFormat(enum.StrEnum):
    """`--output`."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


class Output:
    """Writes to standard output; rows go out as they come, with bounded memory. is_wide: tables
    are not made to fit the terminal, and nothing in them is cut. has_all_rows: tables have all
    their rows, however many."""

    def __init__(
        self,
        format: OutputFormat,
        stream: BinaryIO | None = None,
        *,
        is_wide: bool = False,
        has_all_rows: bool = False,
    ) -> None:
        self.format = format
        self._stream = sys.stdout.buffer if stream is None else stream
        self._is_wide = is_wide
        self._has_all_rows = has_all_rows
        self._screen = None if is_wide else find_screen(self._stream)

    def rows(
        self,
        columns: Sequence[str],
        rows: Iterable[Row],
        *,
        keeps_all: bool = False,
        is_live: bool = False,
        total: int | None = None,
    ) -> int:
        """Write all rows; a table shows `columns` only, JSON every field. keeps_all: none of them
        is left out where there is little room. is_live: each row is to be seen when it comes, not
        when those behind it are known. total: how many rows there are, of which a table may leave
        out those behind the first MOST_ROWS. Returns the number of rows that were written."""
        match self.format:
            case OutputFormat.TABLE:
                return self._table(columns, rows, keeps_all=keeps_all, is_live=is_live, total=total)
            case OutputFormat.NDJSON:
                return self._write_each(rows, b"", b"\n", b"", is_live=is_live)
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
        for line in field_lines(plain, self._screen, is_whole=self._is_wide):
            self.line(line)
        for name, columns in tables.items():
            rows = record[name]
            if isinstance(rows, list) and rows:
                self.line("")
                self._table(columns, rows, total=len(rows))
        self.flush()

    def lines(self, lines: Iterable[bytes], *, heads: int = 0, is_live: bool = False) -> int:
        """Write lines. Returns their number without the first `heads`."""
        count = -heads
        for line in lines:
            self._write(line + b"\n")
            count += 1
            if is_live:
                self.flush()
        self.flush()
        return count

    def line(self, text: str) -> None:
        self._write(text.encode(errors="backslashreplace") + b"\n")

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _explain(error) from None

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except OSError as error:
            raise _explain(error) from None

    def _write_each(
        self,
        rows: Iterable[Row],
        start: bytes,
        between: bytes,
        end: bytes,
        *,
        is_live: bool = False,
    ) -> int:
        count = 0
        self._write(start)
        try:
            for row in rows:
                if count and start:
                    self._write(between)
                self._write(encode(row))
                if not start:
                    self._write(between)
                if is_live:
                    self.flush()
                count += 1
        except TieredStoreError:
            # What was found so far is whole JSON; the exit code says that it is not all.
            self._write(end)
            self.flush()
            raise
        self._write(end)
        self.flush()
        return count

    def _table(
        self,
        columns: Sequence[str],
        rows: Iterable[Row],
        *,
        keeps_all: bool = False,
        is_live: bool = False,
        total: int | None = None,
    ) -> int:
        left_out = 0
        if total is not None and total > MOST_ROWS and not self._has_all_rows:
            rows, left_out = islice(rows, MOST_ROWS), total - MOST_ROWS
        table = Table(columns, self._screen, is_whole=self._is_wide, keeps_all=keeps_all)
        count = 0
        for line in table.lines(rows, sample_rows=0 if is_live else _WIDTH_SAMPLE_ROWS):
            self.line(line)
            count += 1
            if is_live:
                self.flush()
        if left_out:
            self.line(f"… {left_out:,} more: --all-rows shows them")
        self.flush()
        if table.left_out:
            names = ", ".join(table.left_out)
            say(f"no room for {names}; --wide shows all")
        elif table.is_too_wide:
            say("wider than the terminal; fewer columns fit")
        return max(count - table.head_lines, 0)


def encode(value: object) -> bytes:
    """Return a value as JSON; strings that are no valid Unicode (foreign file names) are
    escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        import json

        return json.dumps(value, separators=(",", ":")).encode()


def _explain(error: OSError) -> Exception:
    """What a failed write to the output means: nothing, or an error that says where it was."""
    if isinstance(error, BrokenPipeError):
        return OutputClosed()
    error.filename = "output"
    return error
