"""A query of the small tier's offsets, in a session with the data source enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFFSETS = [[0, 12, 100, 111], [1, 4, 0, 3]]
"""Expected rows for the topic orders in the small tier: queue, number of messages, first offset and
last offset."""
QUERY = """
def offsets(spark, url):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq_tiered "
        f"OPTIONS (path '{url}', subscribe 'orders')"
    )
    found = spark.sql(
        "SELECT queue_id, count(*), min(queue_offset), max(queue_offset) FROM orders "
        "GROUP BY queue_id ORDER BY queue_id"
    )
    return [list(row) for row in found.collect()]
"""


def offsets_once_enabled(spark: SparkSession, url: str) -> Any:
    from tieredstore.spark import enable

    enable(spark)
    enable(spark)  # a second time is no error
    names: dict[str, Any] = {}
    exec(QUERY, names)
    return names["offsets"](spark, url)
