"""Decoder of JSON bodies into the columns of a schema. A body fits if it is one JSON object in
UTF-8 whose members have the types of the schema. Values are not converted: a number in quotes is
not a number. Members outside of the schema are ignored. Missing members and `null` become null. A
body that does not fit gives only nulls, and a reason."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.jobs.exporting.bodies.schema import BodyField, BodySchema, BodyType

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""First and last microsecond of the years 1 to 9999."""
_SHOWN = 60
"""Maximum number of characters that an error message quotes of a value that does not fit the
schema."""
_FLOAT_MOST = 3.4028234663852886e38
_PLAIN: dict[str, object] = {
    "BOOLEAN": bool,
    "INT": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "BIGINT": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    "FLOAT": Annotated[float, msgspec.Meta(ge=-_FLOAT_MOST, le=_FLOAT_MOST)],
    "DOUBLE": float,
    "STRING": str,
    "BINARY": bytes,
    "DATE": date,
    "TIMESTAMP": datetime,
    "DECIMAL": Decimal,
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded bodies. `columns`: columns of the schema. `unfit`: rows that do not fit, and the
    reasons."""

    columns: list[pa.Array]
    unfit: dict[int, str] = field(default_factory=dict)


def decode_bodies(schema: BodySchema, bodies: pa.Array) -> Decoded:
    """Decode the bodies of a batch into columns. `bodies`: binary array without nulls."""
    decoder = _decoder(schema)
    rows: list[dict[str, object]] = []
    unfit: dict[int, str] = {}
    for number, body in enumerate(bodies.to_pylist()):
        try:
            rows.append(_fit_decimals(schema, decoder.decode(body)))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            rows.append({})
            unfit[number] = str(error)
    try:
        return Decoded(_columns(schema, rows), unfit)
    except (pa.ArrowException, ValueError, OverflowError):
        pass
    # Arrow rejects some values, such as a decimal with more digits. They are found row by row.
    for number, row in enumerate(rows):
        try:
            _columns(schema, [row])
        except (pa.ArrowException, ValueError, OverflowError) as error:
            rows[number] = {}
            unfit[number] = str(error)
    return Decoded(_columns(schema, rows), unfit)


def _fit_decimals(schema: BodySchema, row: dict[str, object]) -> dict[str, object]:
    """Return the row with each decimal in the scale (number of decimal places) of its type. Raises
    ValueError for decimals that do not fit. Arrow may crash at a decimal with thousands of
    places."""
    for member in schema.fields:
        if member.type.has_decimals and row.get(member.name) is not None:
            row[member.name] = _fit(member.type, row[member.name])
    return row


def _fit(type_: BodyType, value: Any) -> Any:
    if value is None or not type_.has_decimals:
        return value
    match type_.name:
        case "ARRAY":
            return [_fit(type_.items[0].type, item) for item in value]
        case "MAP":
            return {name: _fit(type_.items[0].type, item) for name, item in value.items()}
        case "STRUCT":
            return {
                item.name: _fit(item.type, value[item.name])
                for item in type_.items
                if item.name in value
            }
    exact = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    try:
        found = value.quantize(Decimal((0, (1,), -type_.scale)), context=exact)
    except DecimalException:
        found = Decimal("NaN")
    if not found.is_finite():
        text = str(value)
        raise ValueError(f"expected a {type_}, found {text[:_SHOWN]}{'…' * (len(text) > _SHOWN)}")
    return found


def _columns(schema: BodySchema, rows: Sequence[dict[str, object]]) -> list[pa.Array]:
    found = [
        pa.array([row.get(field.name) for row in rows], field.type.arrow) for field in schema.fields
    ]
    for column in found:
        _require_years(column)
    return found


def _require_years(column: pa.Array) -> None:
    """Raise ValueError for times whose time zone moves them outside of the years 1 to 9999."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        bounds = pc.min_max(column.view(pa.int64())).as_py()
        if bounds["min"] is not None and (bounds["min"] < _FIRST_US or bounds["max"] > _LAST_US):
            raise ValueError("a time beyond the years 1 to 9999")
    elif pa.types.is_map(kind):
        _require_years(column.items)
    elif pa.types.is_list(kind):
        _require_years(column.flatten())
    elif pa.types.is_struct(kind):
        for member in column.flatten():
            _require_years(member)


@functools.lru_cache(maxsize=16)
def _decoder(schema: BodySchema) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_object(schema.fields))


def _object(fields: Sequence[BodyField]) -> object:
    members = {
        field.name: _type(field.type) if field.required else NotRequired[_type(field.type) | None]
        for field in fields
    }
    return TypedDict("_Object", members)  # type: ignore[operator]


def _type(type_: BodyType) -> Any:
    match type_.name:
        case "ARRAY":
            return list[_type(type_.items[0].type) | None]  # type: ignore[misc]
        case "MAP":
            return dict[str, _type(type_.items[0].type) | None]  # type: ignore[misc]
        case "STRUCT":
            return _object(type_.items)
        case plain:
            return _PLAIN[plain]
