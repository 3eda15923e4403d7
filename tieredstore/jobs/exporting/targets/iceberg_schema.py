"""Columns and partitions of an Iceberg table that an export creates or continues."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.partition import PartitionBy

_TIME = "store_timestamp"


def make_schema(types: Mapping[str, pa.DataType]) -> Any:
    """Return the schema of a new table. The catalog assigns new ids."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    inner = itertools.count(1000)
    return Schema(
        *(
            NestedField(number, name, _type_of(type_, inner), required=False)
            for number, (name, type_) in enumerate(types.items(), 1)
        )
    )


def make_spec(by: PartitionBy, ids: Mapping[str, int]) -> object:
    """Return the partition spec of a new table. `ids`: field ids of its columns."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform

    fields: list[tuple[str, Any, str]] = []
    if by.topic:
        fields.append(("topic", IdentityTransform(), "topic"))
    if by.hour:
        fields.append((_TIME, HourTransform(), f"{_TIME}_hour"))
    elif by.day:
        fields.append((_TIME, DayTransform(), f"{_TIME}_day"))
    if by.buckets:
        fields.append((by.bucket_column, BucketTransform(by.buckets), f"{by.bucket_column}_bucket"))
    return PartitionSpec(
        *(
            PartitionField(ids[column], number, transform, name)
            for number, (column, transform, name) in enumerate(fields, 1000)
        )
    )


def require_cut(table: Any, by: PartitionBy, where: str) -> None:
    """Raise Invalid for a table with finer partitions than the files."""
    from pyiceberg.transforms import (
        BucketTransform,
        DayTransform,
        HourTransform,
        MonthTransform,
        VoidTransform,
        YearTransform,
    )

    buckets: object = BucketTransform(by.buckets) if by.buckets else None
    days = (DayTransform, MonthTransform, YearTransform) if by.day else ()
    hours = (HourTransform,) if by.hour else ()
    for field in table.spec().fields:
        name, transform = table.schema().find_column_name(field.source_id), field.transform
        is_cut = (
            isinstance(transform, VoidTransform)
            or (name == "topic" and by.topic)
            or (name == _TIME and isinstance(transform, (*days, *hours)))
            or (name == by.bucket_column and transform == buckets)
        )
        if not is_cut:
            raise Invalid(
                f"{where}: partitioned by {transform} of {name}, files are cut by "
                f"{', '.join(by.names) or 'nothing'} (partition_by): expected topic, or day, "
                f"month or year of {_TIME}, as far as that has them"
            )


def _type_of(type_: pa.DataType, inner: Iterator[int]) -> Any:
    from pyiceberg import types as of

    plain: dict[pa.DataType, Any] = {
        pa.bool_(): of.BooleanType(),
        pa.int32(): of.IntegerType(),
        pa.int64(): of.LongType(),
        pa.float32(): of.FloatType(),
        pa.float64(): of.DoubleType(),
        pa.string(): of.StringType(),
        pa.binary(): of.BinaryType(),
        pa.date32(): of.DateType(),
        pa.timestamp("us", tz="UTC"): of.TimestamptzType(),
    }
    if pa.types.is_map(type_):
        key, value = next(inner), next(inner)
        item = _type_of(type_.item_type, inner)
        return of.MapType(key, of.StringType(), value, item, value_required=False)
    if pa.types.is_list(type_):
        element = next(inner)
        return of.ListType(element, _type_of(type_.value_type, inner), element_required=False)
    if pa.types.is_struct(type_):
        return of.StructType(
            *(
                of.NestedField(next(inner), item.name, _type_of(item.type, inner), required=False)
                for item in type_
            )
        )
    if pa.types.is_decimal(type_):
        return of.DecimalType(type_.precision, type_.scale)
    return plain[type_]
