"""Arrow columns of a message: names, types, and read costs. Spark accepts every type unchanged:
binary and string with 32-bit offsets, microseconds in UTC, all columns nullable."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.scan.rows import ALL_COLUMNS

_TIME = pa.timestamp("us", tz="UTC")
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "msg_id": pa.string(),
    "offset_msg_id": pa.string(),
    "keys": pa.list_(pa.string()),
    "tags": pa.string(),
    "born_timestamp": _TIME,
    "store_timestamp": _TIME,
    "body": pa.binary(),
    "body_length": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "stored_length": pa.int32(),
    "body_crc": pa.int32(),
    "broker": pa.string(),
    "physical_offset": pa.int64(),
    "sys_flag": pa.int32(),
    "flag": pa.int32(),
    "reconsume_times": pa.int32(),
    "born_host": pa.string(),
    "store_host": pa.string(),
    "body_error": pa.string(),
}
"""Types by name, in the order of `rows.ALL_COLUMNS`."""

STORE_TIME_MS = "store_time_ms"
"""Column of the exact store time, epoch ms, for internal readers. The column `store_timestamp` has
64-bit microseconds, which cannot represent all store times. A scan never returns this column."""

UNIT_COLUMNS = frozenset({"topic", "queue_id", "queue_offset", "broker", "physical_offset"})
"""Columns that need only the consume queue."""
DEFAULT_COLUMNS = tuple(name for name in ALL_COLUMNS if name != "properties")
"""Columns that are read if the caller chooses none: all except the properties, because these cost
more than all other columns together."""


def choose_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the requested columns, or DEFAULT_COLUMNS for None. Raises Invalid for an unknown
    name, a duplicate, and an empty list."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    if not names:
        raise Invalid("columns: expected at least one, since a batch without columns has no rows")
    for name in names:
        if name not in TYPES:
            import difflib

            close = difflib.get_close_matches(name, TYPES, n=2)
            hint = (
                f"Did you mean {' or '.join(close)}?" if close else f"There are: {', '.join(TYPES)}"
            )
            raise Invalid(f"no column {name!r} in a message. {hint}")
    if len(set(names)) < len(names):
        raise Invalid(f"columns {', '.join(names)}: one is named twice")
    return names


def schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the schema of batches with the given columns. Raises Invalid."""
    return schema_of(choose_columns(columns))


@functools.lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the schema of columns with valid names. STORE_TIME_MS is allowed."""
    return pa.schema([(name, TYPES.get(name, pa.int64())) for name in names])
