"""How messages are printed: rows of some fields, bodies alone, or a template."""

from __future__ import annotations

import csv
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from tieredstore.cli.output.cells import escape, plain_text
from tieredstore.cli.output.rows import Output, OutputFormat, encode
from tieredstore.cli.output.table import Row
from tieredstore.cli.output.template import Template
from tieredstore.cli.suggesting import hint_at
from tieredstore.errors import Invalid
from tieredstore.scan.rows import COLUMNS, BodyForm

PROPERTY = "properties."
"""In front of the name of a property, where a field is asked for."""
_TSV_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class MessageForm(enum.StrEnum):
    """`--output` of verbs that print messages."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    TSV = "tsv"
    VERTICAL = "vertical"
    RAW = "raw"


class MessageOutput:
    """Writes messages to standard output as they come, with bounded memory.

    columns: comma-separated fields, None for those of the form; template: of `--format`, in place
    of a form. Raises Invalid for a field that messages do not have, and for options that exclude
    each other.
    """

    def __init__(
        self,
        output: str = MessageForm.TABLE.value,
        columns: str | None = None,
        template: str | None = None,
        body: str = BodyForm.TEXT.value,
        stream: BinaryIO | None = None,
        *,
        is_wide: bool = False,
    ) -> None:
        self.form = MessageForm(output)
        self._template = None if template is None else Template(template)
        self._columns = None if columns is None else _split_columns(columns)
        if template is not None and (columns is not None or self.form is not MessageForm.TABLE):
            raise Invalid("--format excludes --output and --columns: the template says it all")
        if columns is not None and self.form is MessageForm.RAW:
            raise Invalid("--columns: --output raw prints bodies alone")
        _check_fields(self._columns or () if self._template is None else self._template.names)
        self.body = BodyForm(body)
        if self.form is MessageForm.RAW and self.body is BodyForm.TEXT:
            self.body = BodyForm.BYTES
        is_json = self.form is MessageForm.JSON
        is_table = self.form is MessageForm.TABLE and self._template is None
        lines = OutputFormat.TABLE if is_table else OutputFormat.NDJSON
        self._out = Output(OutputFormat.JSON if is_json else lines, stream, is_wide=is_wide)

    def fields(self, table_columns: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of `scan.rows.COLUMNS` that rows have to have. table_columns: those of
        a table where none are asked for."""
        if self._template is not None:
            names: Sequence[str] = self._template.names or ("queue_offset",)
        elif self.form is MessageForm.RAW:
            names = ("body",)
        else:
            names = self._columns_of(table_columns)
        return tuple(dict.fromkeys(name.partition(".")[0] for name in names))

    def write(
        self, table_columns: Sequence[str], rows: Iterable[Row], *, is_live: bool = False
    ) -> int:
        """Write the rows of messages. is_live: each is to be seen when it comes. Returns their
        number."""
        columns = self._columns_of(table_columns)
        if self._template is not None:
            return self._out.lines(self._fill(self._template, rows), is_live=is_live)
        match self.form:
            case MessageForm.CSV:
                return self._out.lines(_csv_lines(columns, rows), heads=1, is_live=is_live)
            case MessageForm.TSV:
                return self._out.lines(_tsv_lines(columns, rows), heads=1, is_live=is_live)
            case MessageForm.VERTICAL:
                return self._out.lines(_blocks(columns, rows), is_live=is_live)
            case MessageForm.RAW:
                return self._out.lines(map(_body_of, rows), is_live=is_live)
            case _:
                if self._columns is not None:
                    rows = (_pick(row, columns) for row in rows)
                keeps_all = self._columns is not None
                return self._out.rows(columns, rows, keeps_all=keeps_all, is_live=is_live)

    def _columns_of(self, table_columns: Sequence[str]) -> Sequence[str]:
        if self._columns is not None:
            return self._columns
        return table_columns if self.form is MessageForm.TABLE else COLUMNS

    def _fill(self, template: Template, rows: Iterable[Row]) -> Iterator[bytes]:
        for row in rows:
            yield _to_bytes(template.fill(_pick(row, template.names), _show))


def _split_columns(text: str) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names or len(set(names)) < len(names):
        raise Invalid(f"--columns {text!r}: expected fields, each once")
    return names


def _check_fields(names: Iterable[str]) -> None:
    for name in names:
        if name not in COLUMNS and not (name.startswith(PROPERTY) and name != PROPERTY):
            hint = hint_at(name, COLUMNS) or f"; there are {', '.join(COLUMNS)}, {PROPERTY}NAME"
            raise Invalid(f"no field {name!r} in a message{hint}")


def _pick(row: Row, columns: Sequence[str]) -> dict[str, object]:
    return {name: _value(row, name) for name in columns}


def _value(row: Row, name: str) -> object:
    if not name.startswith(PROPERTY):
        return row[name]
    properties = row["properties"]
    assert isinstance(properties, Mapping)
    return properties.get(name.removeprefix(PROPERTY))


def _show(name: str, value: object) -> str:
    """A value as a template has it: times in ISO 8601, properties as JSON."""
    return encode(value).decode() if isinstance(value, Mapping) else plain_text(name, value)


def _show_exactly(value: object) -> str:
    """A value as CSV and TSV have it: times stay numbers, as in JSON."""
    return _show("", value)


class _Echo:
    """A file that gives back what is written, which is what csv's writers return."""

    def write(self, text: str) -> str:
        return text


def _csv_lines(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    writer = csv.writer(_Echo(), lineterminator="")
    yield _to_bytes(str(writer.writerow(columns)))
    for row in rows:
        line = writer.writerow([_show_exactly(_value(row, name)) for name in columns])
        yield _to_bytes(str(line))


def _tsv_lines(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    yield _to_bytes("\t".join(columns))
    for row in rows:
        cells = (_show_exactly(_value(row, name)).translate(_TSV_ESCAPES) for name in columns)
        yield _to_bytes("\t".join(cells))


def _blocks(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[bytes]:
    """Each message as a line a field; further lines of a value stand under its first."""
    width = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        lines = [f"-[ {number} ]".ljust(width + 20, "-")]
        for name in columns:
            value = [escape(part) for part in _show(name, _value(row, name)).split("\n")]
            indent = "\n" + " " * (width + 2)
            lines.append(f"{name:<{width}}  {indent.join(value)}".rstrip())
        yield _to_bytes("\n".join(lines))


def _body_of(row: Row) -> bytes:
    body = row["body"]
    return body if isinstance(body, bytes) else _to_bytes(str(body or ""))


def _to_bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
