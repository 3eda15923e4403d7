"""Data source `rocketmq_tiered`: a tier as DataFrame, stream and view. See docs/spark.md."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from tieredstore.errors import Invalid
from tieredstore.spark.options import SourceOptions, parse_options
from tieredstore.spark.schema import Shape, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

_PUSHES_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"
"""Module of the worker process in which Spark plans a query with pushed filters."""

_NO_WRITER = (
    "rocketmq_tiered reads tiers and writes none: a tier has one writer, which holds its writer "
    "epoch, gives the queue offsets and makes the index. Rows get into a tier by a backfill: "
    "tieredstore.jobs.backfilling.backfill_frame(run, tier, frame, staging) takes a Spark "
    "DataFrame, tieredstore.jobs.backfill(tier, table, state=…) and `tieredstore backfill` a "
    "Parquet table (docs/jobs.md, backfill)"
)


class RocketmqTieredDataSource(DataSource):
    """Batch and streaming reads of a RocketMQ tier, without a broker. Spark pickles this class by
    name, so executors must be able to import this module (see `tieredstore.spark.ship`)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Store the options. They are checked when they are used."""
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rocketmq_tiered"

    @cached_property
    def _parsed(self) -> SourceOptions:
        return parse_options(self._given)

    def schema(self) -> StructType:
        """Return the schema: all columns but properties, or the columns of the options. Raises
        Invalid."""
        return spark_schema(self._parsed.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises Invalid, Unavailable."""
        from tieredstore.spark.batch import PushDownReader, TieredBatchReader

        # Spark 4.1 to 4.3 reuses a plan with pushed filters for other queries over the same
        # DataFrame or view, which then lack messages. A caller who knows that may ask for it.
        pushes = self._parsed.push_down_filters and _filters_are_pushed()
        reader = PushDownReader if pushes else TieredBatchReader
        return reader(self._parsed, Shape.of(schema, self._parsed.columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream. Raises Invalid, Unavailable."""
        from tieredstore.spark.stream.reader import TieredStreamReader

        return TieredStreamReader(self._parsed, Shape.of(schema, self._parsed.columns))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise Invalid, because the data source is read-only. The job `backfill` writes rows to a
        tier."""
        del schema, overwrite
        raise Invalid(_NO_WRITER)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Raise Invalid, as `writer` does."""
        del schema, overwrite
        raise Invalid(_NO_WRITER)


def _filters_are_pushed() -> bool:
    """Return whether this process plans queries with pushed filters. A data source cannot read
    spark.sql.python.filterPushdown.enabled (default false), so this function looks for the module
    of the planning process. In other processes, Spark rejects a reader that accepts filters."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHES_FILTERS in sys.modules or getattr(main, "name", None) == _PUSHES_FILTERS
