"""Properties in the shapes of tables: maps, lists of pairs (Polars), structs (JSON)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.table_files import Place

_MAP = pa.map_(pa.string(), pa.string())


def is_text(type: pa.DataType) -> bool:
    """Tell whether values are texts of any width."""
    kinds = pa.types
    return bool(kinds.is_string(type) or kinds.is_large_string(type) or kinds.is_string_view(type))


def is_map_like(type: pa.DataType) -> bool:
    """Tell whether values are texts by name."""
    kinds = pa.types
    if kinds.is_map(type):
        return is_text(type.key_type) and is_text(type.item_type)
    if kinds.is_list(type) or kinds.is_large_list(type):
        pair = type.value_type
        return (
            bool(kinds.is_struct(pair))
            and pair.num_fields == 2
            and all(is_text(pair.field(index).type) for index in range(2))
        )
    return bool(kinds.is_struct(type)) and all(
        is_text(field.type) or kinds.is_null(field.type) for field in type
    )


def map_of(column: pa.Array, place: Place) -> pa.Array:
    """Return a column for which `is_map_like` holds as a map; a name without a value is left out of
    a struct. Raises Invalid for a pair without a name."""
    if pa.types.is_struct(column.type):
        rows = [
            None if row is None else [pair for pair in row.items() if pair[1] is not None]
            for row in column.to_pylist()
        ]
        return pa.array(rows, _MAP)
    if pa.types.is_map(column.type) or pa.types.is_null(column.type):
        return column
    names, values = column.values.flatten()
    if names.null_count and pc.list_flatten(column).flatten()[0].null_count:
        raise Invalid(f"{place}, column properties: expected a name of each, found null")
    names = pc.fill_null(names.cast(pa.string()), "")
    offsets = pa.array(column.offsets.to_numpy().astype("int32"), pa.int32())
    return pa.MapArray.from_arrays(offsets, names, values.cast(pa.string()), mask=column.is_null())
