"""Output of rows or a record as a table, JSON, or newline-delimited JSON."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import BinaryIO, Final

from tieredstore.cli.harmless import encode, make_harmless_bytes
from tieredstore.cli.logs.choice import say
from tieredstore.cli.output.cells import find_screen
from tieredstore.cli.output.table import Row, Table, field_lines
from tieredstore.errors import TieredStoreError

Tables = dict[str, tuple[str, ...]]
STAGES_TABLE: Tables = {"stages": ("stage", "tasks", "resumed", "size_bytes", "seconds")}
USAGE_TABLE: Tables = {
    "requests_by_operation": (
        "operation",
        "file_type",
        "requests",
        "failed",
        "sent_bytes",
        "received_bytes",
        "cost_usd",
    )
}


MOST_ROWS: Final = 50
"""Maximum number of rows in a table that lists the queues of a tier. If there are more, a last line
gives the number of omitted rows."""
_WIDTH_SAMPLE_ROWS = 200


class OutputClosed(Exception):
    """Raised if the reader of the output has stopped (`| head`). This is not an error."""


class OutputFormat(enum.StrEnum):
    """Values of `--output`."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"


class Output:
    """Writer to standard output. Rows are written as they arrive, with bounded memory. On a
    terminal, control characters are escaped in every format. `is_wide`: True if tables may be wider
    than the terminal, so that nothing is shortened. `has_all_rows`: True if tables show all
    rows."""

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
        self._is_terminal = self._stream.isatty()

    def rows(
        self,
        columns: Sequence[str],
        rows: Iterable[Row],
        *,
        keeps_all: bool = False,
        is_live: bool = False,
        total: int | None = None,
    ) -> int:
        """Write rows, and return how many were written. A table shows only `columns`, JSON shows
        every field. `keeps_all`: True to keep all columns even if there is not enough space.
        `is_live`: True to flush each row. `total`: number of all rows. If given, a table may show
        only the first MOST_ROWS."""
        match self.format:
            case OutputFormat.TABLE:
                return self._table(columns, rows, keeps_all=keeps_all, is_live=is_live, total=total)
            case OutputFormat.NDJSON:
                return self._write_each(rows, b"", b"\n", b"", is_live=is_live)
            case OutputFormat.JSON:
                return self._write_each(rows, b"[\n", b",\n", b"\n]\n")

    def record(self, record: Row, lists: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write a record, as a table with one line per field or as JSON. `lists`: fields that are
        lists of rows, with the columns of their tables."""
        if self.format is not OutputFormat.TABLE:
            self._write(encode(record) + b"\n")
            self.flush()
            return
        tables = lists or {}
        plain = {name: value for name, value in record.items() if name not in tables}
        for line in field_lines(plain, self._screen, is_whole=self._is_wide):
            self.line(line)
        for name, columns in tables.items():
            rows = record.get(name)
            if isinstance(rows, list) and rows:
                self.line("")
                self._table(columns, rows, total=len(rows))
        self.flush()

    def lines(self, lines: Iterable[bytes], *, heads: int = 0, is_live: bool = False) -> int:
        """Write lines. Returns how many were written, excluding the first `heads`."""
        count = -heads
        for line in lines:
            self._write(line + b"\n")
            count += 1
            if is_live:
                self.flush()
        self.flush()
        return count

    def line(self, text: str) -> None:
        self._write(text.encode(errors="backslashreplace") + b"\n", is_styled=True)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _explain(error) from None

    def _write(self, data: bytes, *, is_styled: bool = False) -> None:
        if self._is_terminal:
            data = make_harmless_bytes(data, keeps_styles=is_styled)
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
            # The rows so far are whole JSON. The exit code reports that some are missing.
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
            say(f"no room for {names}: --wide shows all")
        elif table.is_too_wide:
            say("wider than the terminal: choose fewer columns")
        return max(count - table.head_lines, 0)


def _explain(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return OutputClosed()
    error.filename = "output"
    return error
