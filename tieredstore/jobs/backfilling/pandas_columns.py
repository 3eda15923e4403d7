"""Columns of pandas as Arrow's: objects have no type, numbers with a null are floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.scan.arrow.schema import TYPES

_TIMES = ("born_timestamp", "store_timestamp")


def table_of_pandas(frame: Any) -> pa.Table:
    """Return the columns of a DataFrame that messages have. Raises Invalid."""
    names = [name for name in frame.columns if name in TYPES]
    return pa.table({name: _column(name, frame[name]) for name in names})


def _column(name: str, series: Any) -> pa.Array:
    whole = pa.types.is_integer(TYPES[name]) or name in _TIMES
    try:
        if series.dtype == object and name == "properties":
            pairs = [_pairs(row, value) for row, value in enumerate(series)]
            return pa.array(pairs, TYPES[name])
        if series.dtype == object and name == "keys":
            return pa.array([_keys(row, value) for row, value in enumerate(series)], TYPES[name])
        if whole and getattr(series.dtype, "kind", "") == "f":
            return _whole_numbers(name, series)
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Invalid(f"frame, column {name}: {error}") from error


def _whole_numbers(name: str, series: Any) -> pa.Array:
    there = series[series.notna()]
    odd = there[there % 1 != 0]
    if len(odd):
        raise Invalid(f"frame, column {name}: expected whole numbers, found {odd.iloc[0]}")
    return pa.array(series.astype("Int64"), from_pandas=True)


def _pairs(row: int, value: Any) -> list[tuple[str, str]] | None:
    """Properties of a message: a dict, or pairs as pyarrow and Polars give them to pandas."""
    if _is_missing(value):
        return None
    try:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        else:
            pairs = [
                (item["key"], item["value"]) if isinstance(item, Mapping) else tuple(item)
                for item in value
            ]
        texts: list[tuple[str, str]] | None = [
            (name, text) for name, text in pairs if not _is_missing(text)
        ]
    except (TypeError, ValueError, KeyError):
        texts = None
    if texts is None or not all(isinstance(part, str) for pair in texts for part in pair):
        raise Invalid(
            f"frame, column properties, row {row}: expected texts by name, found {value!r}"
        )
    return texts


def _keys(row: int, value: Any) -> list[str] | None:
    if _is_missing(value):
        return None
    if isinstance(value, str):
        raise Invalid(f"frame, column keys, row {row}: expected a list of texts, found {value!r}")
    return list(value)


def _is_missing(value: Any) -> bool:
    """None, NaN, NA, NaT; each of the last three is another one than itself, or nothing at all."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, float) and value != value  # noqa: PLR0124
