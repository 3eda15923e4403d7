"""Spark types of a message's columns, and batches in Spark's form."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tieredstore.errors import Invalid
from tieredstore.scan.arrow.schema import choose_columns, schema

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""Argument of `to_arrow_schema` that selects UTC. In Spark 4.1 the function has no such
parameter."""


def spark_schema(columns: tuple[str, ...] | None) -> StructType:
    """Return the Spark type of `columns`, or of all columns but properties for None."""
    return from_arrow_schema(schema(columns))


def columns_of(wanted: StructType, named: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the columns of the user's schema, or of the schema of this source. Raises Invalid if a
    name or a type is not one of a message, or if the option `columns` differs."""
    if not wanted.fields:
        raise Invalid("schema: expected at least one column, found none")
    try:
        names = choose_columns(wanted.fieldNames())
    except Invalid as error:
        raise Invalid(f"schema: {error}") from error
    for field, ours in zip(wanted.fields, spark_schema(names).fields, strict=True):
        if field.dataType.simpleString() != ours.dataType.simpleString():
            raise Invalid(
                f"schema: column {field.name!r}: expected {ours.dataType.simpleString()}, "
                f"found {field.dataType.simpleString()}"
            )
    if named is not None and set(named) != set(names):
        raise Invalid(
            f"schema and the option columns differ: {', '.join(names)} and {', '.join(named)}. "
            "Give one of them"
        )
    return names


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns of a read, and their Arrow schema. `read`: the columns to read from the tier. They
    always include queue_offset, which shows the reader's progress."""

    columns: tuple[str, ...]
    arrow: pa.Schema

    @classmethod
    def of(cls, wanted: StructType, named: tuple[str, ...] | None) -> Shape:
        """Create the object for the schema that the user wants. Raises Invalid like
        `columns_of`."""
        names = columns_of(wanted, named)
        # Spark compares the first batch with this, inner names and nullability included.
        return cls(names, to_arrow_schema(wanted, **_IN_UTC))

    @property
    def read(self) -> tuple[str, ...]:
        return self.columns if "queue_offset" in self.columns else (*self.columns, "queue_offset")

    def batch(self, found: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch with the columns `read` to Spark's form."""
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(found.columns, self.arrow, strict=False)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
