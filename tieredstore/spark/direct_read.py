"""Tier as a DataFrame without the data source: planned in the calling process, and read with
`mapInArrow`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.errors import Invalid
from tieredstore.spark.sessions.shipping import ship

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tieredstore.spark.reading import PartitionReader

Value: TypeAlias = "str | int | Iterable[str] | Mapping[str, object]"


def read(spark: SparkSession, path: str | None = None, /, **options: Value) -> DataFrame:
    """Read a tier as a DataFrame with the rows and options of
    `spark.read.format("rocketmq_tiered")`. The plan is made in this process during the call. This
    saves the Python process that the data source starts for each query, which takes some tenths of
    a second. All queries over the DataFrame see the same snapshot. Options may be Python objects:
    True, 5, ["orders", "refunds"], {"orders": {"broker-a": [0, 1]}}. Raises Invalid for wrong
    options, Corrupt, Unavailable."""
    from tieredstore.spark.batch import TieredBatchReader
    from tieredstore.spark.options import LISTED_AGAIN, STREAM_ONLY, parse_options, refuse
    from tieredstore.spark.schema import Shape, spark_schema

    given = {name: _text(name, value) for name, value in options.items()}
    if path is not None:
        if any(name.lower() == "path" for name in given):
            raise Invalid(f"path: given twice, {path!r} and among the options")
        given["path"] = path
    parsed = parse_options(given)
    text = "means nothing in tieredstore.spark.read"
    refuse(parsed, ("pushDownFilters", *STREAM_ONLY, LISTED_AGAIN), text)
    schema = spark_schema(parsed.columns)
    reader = TieredBatchReader(parsed, Shape.of(schema, parsed.columns))
    tasks = tuple(pickle.dumps(partition) for partition in reader.partitions())
    ship(spark)
    # Row n of n partitions names the n-th task. An empty plan gets one row, which is filtered out.
    count = max(len(tasks), 1)
    numbers = spark.range(0, count, 1, count)
    return numbers.mapInArrow(_make_reader(reader.partition_reader, tasks), schema)


def _text(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    match name.lower():
        case "tags":
            return " || ".join(value)
        case "keys":
            return json.dumps(list(value))
        case _:
            return ",".join(value)


def _make_reader(
    reader: PartitionReader, tasks: tuple[bytes, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number < len(tasks):
                    yield from reader.batches(pickle.loads(tasks[number]))  # noqa: S301

    return read_tasks
