"""Output of messages: rows with selected fields, bodies only, or a template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from tieredstore.cli.help.suggesting import hint_at
from tieredstore.cli.output.forms import Form, make_output, show_value, to_bytes, write_form
from tieredstore.cli.output.table import Row
from tieredstore.cli.output.template import Template
from tieredstore.errors import Invalid
from tieredstore.scan.rows import ALL_COLUMNS, BODY_ERROR, COLUMNS, BodyForm

PROPERTY = "properties."
"""Prefix of a property's name when the property is requested as a field."""


class MessageOutput:
    """Writes messages to standard output as they arrive, with bounded memory. `columns`:
    comma-separated fields, or None for the defaults of the format. `template`: `--format` text to
    use instead of a format. `defuses`: as in `write_form`. Raises Invalid for an unknown field, and
    for options that exclude each other."""

    def __init__(
        self,
        output: str = Form.TABLE.value,
        columns: str | None = None,
        template: str | None = None,
        body: str = BodyForm.TEXT.value,
        stream: BinaryIO | None = None,
        *,
        is_wide: bool = False,
        defuses: bool = False,
    ) -> None:
        self.form = Form(output)
        self._template = None if template is None else Template(template)
        self._columns = None if columns is None else _split_columns(columns)
        if template is not None and (columns is not None or self.form is not Form.TABLE):
            raise Invalid("--format excludes --output and --columns: the template says it all")
        if columns is not None and self.form is Form.RAW:
            raise Invalid("--columns: --output raw prints bodies alone")
        _check_fields(self._columns or () if self._template is None else self._template.names)
        self.body = BodyForm(body)
        if self.form is Form.RAW and self.body is BodyForm.TEXT:
            self.body = BodyForm.BYTES
        self._defuses = defuses
        self._out = make_output(self.form, stream, is_wide=is_wide)

    def fields(self, table_columns: Sequence[str]) -> tuple[str, ...]:
        """Return the fields of `scan.rows.COLUMNS` that rows need. `table_columns`: default columns
        of a table."""
        if self._template is not None:
            names: Sequence[str] = self._template.names or ("queue_offset",)
        elif self.form is Form.RAW:
            names = ("body",)
        else:
            names = self._columns_of(table_columns)
        return tuple(dict.fromkeys(name.partition(".")[0] for name in names))

    def require_live(self) -> None:
        """Raise Invalid for JSON, because an endless stream of messages cannot be a JSON array."""
        if self.form is Form.JSON:
            raise Invalid(
                "--output json is one array, which has no end here; ndjson is a line each"
            )

    def write(
        self, table_columns: Sequence[str], rows: Iterable[Row], *, is_live: bool = False
    ) -> int:
        """Write the rows of messages, and return how many were written. `is_live`: True to flush
        each row as it arrives."""
        columns = self._columns_of(table_columns)
        if self._template is not None:
            return self._out.lines(self._fill(self._template, rows), is_live=is_live)
        if self.form is Form.RAW:
            return self._out.lines(map(_body_of, rows), is_live=is_live)
        if self._columns is not None or self.form in (Form.CSV, Form.TSV):
            rows = (_pick(row, columns) for row in rows)
        keeps_all = self._columns is not None
        return write_form(
            self._out,
            self.form,
            columns,
            rows,
            keeps_all=keeps_all,
            is_live=is_live,
            defuses=self._defuses,
        )

    def _columns_of(self, table_columns: Sequence[str]) -> Sequence[str]:
        if self._columns is not None:
            return self._columns
        return table_columns if self.form is Form.TABLE else COLUMNS

    def _fill(self, template: Template, rows: Iterable[Row]) -> Iterator[bytes]:
        for row in rows:
            yield to_bytes(template.fill(_pick(row, template.names), show_value))


def _split_columns(text: str) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names or len(set(names)) < len(names):
        raise Invalid(f"--columns {text!r}: expected fields, each once")
    return names


def _check_fields(names: Iterable[str]) -> None:
    for name in names:
        if name not in ALL_COLUMNS and not (name.startswith(PROPERTY) and name != PROPERTY):
            there = f"; there are {', '.join(ALL_COLUMNS)}, {PROPERTY}NAME"
            hint = hint_at(name, ALL_COLUMNS) or there
            raise Invalid(f"no field {name!r} in a message{hint}")


def _pick(row: Row, columns: Sequence[str]) -> dict[str, object]:
    return {name: _value(row, name) for name in columns}


def _value(row: Row, name: str) -> object:
    if not name.startswith(PROPERTY):
        return row.get(name) if name == BODY_ERROR else row[name]
    properties = row["properties"]
    assert isinstance(properties, Mapping)
    return properties.get(name.removeprefix(PROPERTY))


def _body_of(row: Row) -> bytes:
    body = row["body"]
    return body if isinstance(body, bytes) else to_bytes(str(body or ""))
