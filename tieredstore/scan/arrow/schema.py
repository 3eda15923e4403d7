"""The columns of a message in Arrow: names, types, and what each of them costs to read.

Every type is one that Spark takes as it is: binary and string with 32-bit offsets, microseconds in
UTC, nothing declared as never null.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.scan.rows import COLUMNS

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
}
"""By name, in the order of `rows.COLUMNS`."""

UNIT_COLUMNS = frozenset({"topic", "queue_id", "queue_offset", "broker", "physical_offset"})
"""What the consume queue alone answers."""
DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "properties")
"""Properties as a map cost more than all other columns together: they are read when named."""


def choose_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the columns asked for, DEFAULT_COLUMNS for None. Raises Invalid for a name that is no
    column, a name that is there twice, and for no name at all."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    if not names:
        raise Invalid("columns: expected at least one; a batch without columns has no rows")
    for name in names:
        if name not in TYPES:
            import difflib

            close = difflib.get_close_matches(name, TYPES, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else ", ".join(TYPES)
            raise Invalid(f"no column {name!r} in a message; {hint}")
    if len(set(names)) < len(names):
        raise Invalid(f"columns {', '.join(names)}: one is named twice")
    return names


def schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the schema of batches with those columns. Raises Invalid."""
    return schema_of(choose_columns(columns))


@functools.lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the `schema` of names that were checked."""
    return pa.schema([(name, TYPES[name]) for name in names])
