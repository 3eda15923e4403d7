"""Row formats: tables, JSON, CSV, TSV, and blocks with one line per field."""

from __future__ import annotations

import csv
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from tieredstore.cli.harmless import defuse_formula, encode
from tieredstore.cli.output.cells import escape, plain_text
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.cli.output.table import Row

_LINE_ENDS = "\r\n"
_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class Form(enum.StrEnum):
    """Values of `--output` for verbs that print messages or rows derived from them."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    TSV = "tsv"
    VERTICAL = "vertical"
    RAW = "raw"


def make_output(form: Form, stream: BinaryIO | None = None, *, is_wide: bool = False) -> Output:
    formats = {Form.TABLE: OutputFormat.TABLE, Form.JSON: OutputFormat.JSON}
    return Output(formats.get(form, OutputFormat.NDJSON), stream, is_wide=is_wide)


def write_form(
    out: Output,
    form: Form,
    columns: Sequence[str],
    rows: Iterable[Row],
    *,
    keeps_all: bool = False,
    is_live: bool = False,
    defuses: bool = False,
) -> int:
    """Write rows in any format except RAW, and return how many were written. `keeps_all`,
    `is_live`: as in `Output.rows`. `defuses`: True to change text in CSV and TSV that a spreadsheet
    would interpret as a formula."""
    match form:
        case Form.CSV:
            return out.lines(csv_lines(columns, rows, defuses=defuses), heads=1, is_live=is_live)
        case Form.TSV:
            return out.lines(tsv_lines(columns, rows, defuses=defuses), heads=1, is_live=is_live)
        case Form.VERTICAL:
            return out.lines(blocks(columns, rows), is_live=is_live)
        case _:
            return out.rows(columns, rows, keeps_all=keeps_all, is_live=is_live)


def show_value(name: str, value: object) -> str:
    """Format a value for a template: times in ISO 8601, properties as JSON."""
    return encode(value).decode() if isinstance(value, Mapping) else plain_text(name, value)


def _show_exactly(value: object) -> str:
    """Format a value for CSV and TSV. Times stay numbers, as in JSON."""
    return show_value("", value)


def _show_defused(value: object) -> str:
    """Format a value for a spreadsheet. Text that looks like a formula is escaped, numbers are
    unchanged."""
    text = _show_exactly(value)
    return text if isinstance(value, int | float) else defuse_formula(text)


class _Echo:
    """File object for `csv.writer` whose `write` returns the text, so that `writerow` returns the
    line."""

    def write(self, text: str) -> str:
        return text


def csv_lines(
    columns: Sequence[str], rows: Iterable[Row], *, defuses: bool = False
) -> Iterator[bytes]:
    """Yield the header and a record for each row, as in RFC 4180. Values with line breaks are
    quoted."""
    # The writer quotes a value with a line break only if its own lines end with that one.
    writer = csv.writer(_Echo(), lineterminator=_LINE_ENDS)
    show = _show_defused if defuses else _show_exactly
    yield to_bytes(str(writer.writerow([show(name) for name in columns])).removesuffix(_LINE_ENDS))
    for row in rows:
        line = writer.writerow([show(row[name]) for name in columns])
        yield to_bytes(str(line).removesuffix(_LINE_ENDS))


def tsv_lines(
    columns: Sequence[str], rows: Iterable[Row], *, defuses: bool = False
) -> Iterator[bytes]:
    """Yield the header and a line for each row. Tabs and line breaks are escaped."""
    show = _show_defused if defuses else _show_exactly
    yield to_bytes("\t".join(show(name) for name in columns))
    for row in rows:
        cells = (show(row[name]).translate(_TSV_ESCAPES) for name in columns)
        yield to_bytes("\t".join(cells))


def blocks(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the fields of each row on separate lines. Continuation lines of a value are
    indented."""
    width = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        lines = [f"-[ {number} ]".ljust(width + 20, "-")]
        for name in columns:
            value = [escape(part) for part in show_value(name, row[name]).split("\n")]
            indent = "\n" + " " * (width + 2)
            lines.append(f"{name:<{width}}  {indent.join(value)}".rstrip())
        yield to_bytes("\n".join(lines))


def to_bytes(text: str) -> bytes:
    """Encode a string as UTF-8. Invalid Unicode is escaped."""
    return text.encode(errors="backslashreplace")
