"""Schema of JSON bodies as text: `id BIGINT, at TIMESTAMP, city STRUCT<name: STRING>`. The types
are those of Spark's DDL that Parquet, Delta and Iceberg support."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.scan.rows import ALL_COLUMNS

_PLAIN: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}
_SYNONYMS = {"BOOL": "BOOLEAN", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT"}
_KNOWN = (*_PLAIN, "DECIMAL(p,s)", "ARRAY<…>", "MAP<STRING,…>", "STRUCT<name: …>")
RESERVED = frozenset({*ALL_COLUMNS, "day", "hour", "bucket"})
"""Column names that a body column must not have, because a target uses them for other columns."""
_MOST_DEPTH = 32
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([\w$.@-]+)|([<>(),:])|(\S))")


@dataclass(frozen=True, slots=True)
class BodyType:
    """A type. `name`: a name in `_PLAIN`, or DECIMAL, ARRAY, MAP, STRUCT. `items`: element
    types."""

    name: str
    items: tuple[BodyField, ...] = ()
    precision: int = 0
    scale: int = 0

    @property
    def has_decimals(self) -> bool:
        return self.name == "DECIMAL" or any(item.type.has_decimals for item in self.items)

    @property
    def arrow(self) -> pa.DataType:
        match self.name:
            case "DECIMAL":
                return pa.decimal128(self.precision, self.scale)
            case "ARRAY":
                return pa.list_(self.items[0].type.arrow)
            case "MAP":
                return pa.map_(pa.string(), self.items[0].type.arrow)
            case "STRUCT":
                return pa.struct([pa.field(item.name, item.type.arrow) for item in self.items])
            case plain:
                return _PLAIN[plain]

    def __str__(self) -> str:
        match self.name:
            case "DECIMAL":
                return f"DECIMAL({self.precision},{self.scale})"
            case "ARRAY":
                return f"ARRAY<{self.items[0].type}>"
            case "MAP":
                return f"MAP<STRING,{self.items[0].type}>"
            case "STRUCT":
                fields = ", ".join(f"{_quote(item.name)}: {item.text}" for item in self.items)
                return f"STRUCT<{fields}>"
            case plain:
                return plain


@dataclass(frozen=True, slots=True)
class BodyField:
    """Member of a JSON object. A body without a `required` member does not fit."""

    name: str
    type: BodyType
    required: bool = False

    @property
    def text(self) -> str:
        return f"{self.type} NOT NULL" if self.required else str(self.type)


@dataclass(frozen=True, slots=True)
class BodySchema:
    """Members of JSON bodies that become columns of the target. A column's name is `prefix`
    followed by the member's name."""

    fields: tuple[BodyField, ...]
    prefix: str = ""

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Types of the columns by name, in order."""
        return {f"{self.prefix}{field.name}": field.type.arrow for field in self.fields}

    def __str__(self) -> str:
        return ", ".join(f"{_quote(field.name)} {field.text}" for field in self.fields)


def parse_body_schema(text: str, prefix: str = "") -> BodySchema:
    """Parse `name TYPE [NOT NULL], …`. Backticks quote names with other characters. Raises
    Invalid."""
    parser = _Parser(text)
    schema = BodySchema(tuple(parser.read_fields()), prefix)
    names = list(schema.types)
    lower = [name.lower() for name in names]
    for name in names:
        if name.lower() in RESERVED:
            raise Invalid(
                f"body schema: column {name!r} is one of the message's or of the target's. Give "
                "the columns of the body a prefix (body_prefix)"
            )
        if lower.count(name.lower()) > 1:
            raise Invalid(f"body schema: column {name!r} is there twice. Case does not count")
    return schema


def read_body_schema(given: str | Path, prefix: str = "") -> BodySchema:
    """Parse a schema given as text, or as a file. Raises Invalid."""
    if isinstance(given, str):
        return parse_body_schema(given, prefix)
    try:
        text = given.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise Invalid(f"body schema {given}: {error}", path=str(given)) from error
    return parse_body_schema(text, prefix)


class _Parser:
    """Parser that reads a schema from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[int, str, bool]] = list(_split(text))
        self._next = 0

    def read_fields(self) -> Iterator[BodyField]:
        """Parse the whole schema."""
        yield self._read_field(0, is_inner=False)
        while self._next < len(self._tokens):
            self._expect(",")
            yield self._read_field(0, is_inner=False)

    def _read_field(self, depth: int, *, is_inner: bool) -> BodyField:
        place, name, is_name = self._take("a name")
        if not is_name:
            raise self._error(place, "a name", name)
        if is_inner and self._peek() == ":":
            self._take(":")
        type_ = self._read_type(depth)
        required = False
        if (self._peek() or "").upper() == "NOT":
            self._take("NOT")
            self._expect("NULL")
            required = True
        return BodyField(name, type_, required)

    def _read_type(self, depth: int) -> BodyType:
        place, found, _ = self._take("a type")
        name = _SYNONYMS.get(found.upper(), found.upper())
        if depth > _MOST_DEPTH:
            raise self._error(place, f"at most {_MOST_DEPTH} types within each other", found)
        if name in _PLAIN:
            return BodyType(name)
        match name:
            case "DECIMAL":
                return self._read_decimal()
            case "ARRAY":
                self._expect("<")
                item = BodyField("element", self._read_type(depth + 1))
                self._expect(">")
                return BodyType(name, (item,))
            case "MAP":
                self._expect("<")
                self._expect("STRING")
                self._expect(",")
                item = BodyField("value", self._read_type(depth + 1))
                self._expect(">")
                return BodyType(name, (item,))
            case "STRUCT":
                return self._read_struct(depth)
            case _:
                raise self._error(place, f"a type ({', '.join(_KNOWN)})", found)

    def _read_struct(self, depth: int) -> BodyType:
        self._expect("<")
        items = [self._read_field(depth + 1, is_inner=True)]
        while self._peek() == ",":
            self._take(",")
            items.append(self._read_field(depth + 1, is_inner=True))
        place = self._expect(">")
        names = [item.name.lower() for item in items]
        for name in names:
            if names.count(name) > 1:
                raise self._error(place, "names that differ, whatever their case", name)
        return BodyType("STRUCT", tuple(items))

    def _read_decimal(self) -> BodyType:
        self._expect("(")
        precision = self._read_number()
        scale = 0
        if self._peek() == ",":
            self._take(",")
            scale = self._read_number()
        place = self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            found = f"({precision},{scale})"
            raise self._error(place, "a precision from 1 to 38 and no larger scale", found)
        return BodyType("DECIMAL", (), precision, scale)

    def _read_number(self) -> int:
        place, found, _ = self._take("a number")
        if not re.fullmatch(r"\d{1,3}", found, re.ASCII):
            raise self._error(place, "a number", found)
        return int(found)

    def _peek(self) -> str | None:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else None

    def _take(self, wanted: str) -> tuple[int, str, bool]:
        if self._next == len(self._tokens):
            raise self._error(len(self._text), wanted, "its end")
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, wanted: str) -> int:
        place, found, _ = self._take(f"{wanted!r}")
        if found.upper() != wanted:
            raise self._error(place, repr(wanted), found)
        return place

    def _error(self, place: int, wanted: str, found: str) -> Invalid:
        return Invalid(
            f"body schema, character {place + 1}: expected {wanted}, found {found!r}. A schema "
            "is such as: id BIGINT, at TIMESTAMP, city STRUCT<name: STRING>"
        )


def _split(text: str) -> Iterator[tuple[int, str, bool]]:
    """Split a text into words, with the position of each and whether it may be a name."""
    end = len(text.rstrip())
    place = 0
    while place < end:
        found = _TOKEN.match(text, place)
        assert found is not None
        quoted, word, mark, other = found.groups()
        if quoted is not None:
            yield found.start(1), quoted[1:-1].replace("``", "`"), True
        elif word is not None:
            yield found.start(2), word, True
        else:
            yield found.start(3 if mark else 4), mark or other, False
        place = found.end()


def _quote(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`"
