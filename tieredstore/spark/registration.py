"""The data source in a session, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.spark.session import PUSH_DOWN
from tieredstore.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def enable(spark: SparkSession) -> None:
    """Make `spark.read.format("rocketmq_tiered")` work in a session.

    The package is sent to where tasks run, the source registered, and filters are pushed down.
    """
    from tieredstore.spark.source import RocketmqTieredDataSource

    ship(spark)
    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(RocketmqTieredDataSource)
