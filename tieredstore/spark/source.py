"""The data source `rocketmq_tiered`: a tier as DataFrame, stream and view. See docs/spark.md."""

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
"""The worker in which Spark plans a query whose filters it pushes down."""

_NO_WRITER = (
    "rocketmq_tiered reads tiers and writes none: a tier has one writer, which holds its writer "
    "epoch, gives the queue offsets and makes the index. Rows get into a tier by a backfill: "
    "tieredstore.jobs.backfilling.backfill_frame(run, tier, frame, staging) takes a Spark "
    "DataFrame, tieredstore.jobs.backfill(tier, table, state=…) and `tieredstore backfill` a "
    "Parquet table (docs/jobs.md, backfill)"
)


class RocketmqTieredDataSource(DataSource):
    """Batch and streaming reads of a RocketMQ tier, without a broker.

    Pickled by name: executors import this module, from where it is installed or from what was sent
    (`tieredstore.spark.ship`).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options; wrong ones are told by what uses them."""
        super().__init__(options)
        self._given = options

    @classmethod
    def name(cls) -> str:
        return "rocketmq_tiered"

    @cached_property
    def _parsed(self) -> SourceOptions:
        return parse_options(self._given)

    def schema(self) -> StructType:
        """Return all columns but properties, or those of the options. Raises Invalid for options
        that are wrong."""
        return spark_schema(self._parsed.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch query. Raises Invalid, Unavailable."""
        from tieredstore.spark.batch import PushDownReader, TieredBatchReader

        # Spark 4.1 to 4.3 keeps what it planned with pushed filters for other queries over the same
        # DataFrame or view, and these then lack messages: only who knows that may ask for it.
        pushes = self._parsed.push_down_filters and _filters_are_pushed()
        reader = PushDownReader if pushes else TieredBatchReader
        return reader(self._parsed, Shape.of(schema, self._parsed.columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream. Raises Invalid, Unavailable."""
        from tieredstore.spark.stream.reader import TieredStreamReader

        return TieredStreamReader(self._parsed, Shape.of(schema, self._parsed.columns))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise Invalid: rows get into a tier by the job `backfill`."""
        del schema, overwrite
        raise Invalid(_NO_WRITER)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Raise Invalid, as `writer` does."""
        del schema, overwrite
        raise Invalid(_NO_WRITER)


def _filters_are_pushed() -> bool:
    """Whether this process is Spark's for queries with pushed filters. A reader that takes filters
    is an error in any other: spark.sql.python.filterPushdown.enabled is false by default, and the
    setting itself is not told to data sources."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHES_FILTERS in sys.modules or getattr(main, "name", None) == _PUSHES_FILTERS
