"""The forms in which rows are printed: tables and JSON, lines of CSV and TSV, blocks of a line a
field."""

from __future__ import annotations

import csv
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from tieredstore.cli.output.cells import escape, plain_text
from tieredstore.cli.output.rows import Output, OutputFormat, encode
from tieredstore.cli.output.table import Row

_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class Form(enum.StrEnum):
    """`--output` of verbs that print messages, or rows made of them."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    TSV = "tsv"
    VERTICAL = "vertical"
    RAW = "raw"


def make_output(form: Form, stream: BinaryIO | None = None, *, is_wide: bool = False) -> Output:
    """Make the output of rows in a form."""
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
) -> int:
    """Write rows in any form but RAW; the last two as of `Output.rows`. Returns their number."""
    match form:
        case Form.CSV:
            return out.lines(csv_lines(columns, rows), heads=1, is_live=is_live)
        case Form.TSV:
            return out.lines(tsv_lines(columns, rows), heads=1, is_live=is_live)
        case Form.VERTICAL:
            return out.lines(blocks(columns, rows), is_live=is_live)
        case _:
            return out.rows(columns, rows, keeps_all=keeps_all, is_live=is_live)


def show_value(name: str, value: object) -> str:
    """Return a value as a template has it: times in ISO 8601, properties as JSON."""
    return encode(value).decode() if isinstance(value, Mapping) else plain_text(name, value)


def _show_exactly(value: object) -> str:
    """A value as CSV and TSV have it: times stay numbers, as in JSON."""
    return show_value("", value)


class _Echo:
    """A file that gives back what is written, which is what csv's writers return."""

    def write(self, text: str) -> str:
        return text


def csv_lines(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the names of the columns and a record for each row, by RFC 4180. A line break within a
    value is in quotes."""
    writer = csv.writer(_Echo(), lineterminator="")
    yield to_bytes(str(writer.writerow(columns)))
    for row in rows:
        line = writer.writerow([_show_exactly(row[name]) for name in columns])
        yield to_bytes(str(line))


def tsv_lines(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield the names of the columns and a line for each row; tabs and line breaks are escaped."""
    yield to_bytes("\t".join(columns))
    for row in rows:
        cells = (_show_exactly(row[name]).translate(_TSV_ESCAPES) for name in columns)
        yield to_bytes("\t".join(cells))


def blocks(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield each row as a line a field; further lines of a value stand under its first."""
    width = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        lines = [f"-[ {number} ]".ljust(width + 20, "-")]
        for name in columns:
            value = [escape(part) for part in show_value(name, row[name]).split("\n")]
            indent = "\n" + " " * (width + 2)
            lines.append(f"{name:<{width}}  {indent.join(value)}".rstrip())
        yield to_bytes("\n".join(lines))


def to_bytes(text: str) -> bytes:
    """Return a text as UTF-8; what is no valid Unicode is escaped."""
    return text.encode(errors="backslashreplace")
