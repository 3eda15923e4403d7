"""Module by which Spark finds the data source `rocketmq_tiered`. Spark searches top-level modules
named `pyspark_*`."""

from tieredstore.spark.source import RocketmqTieredDataSource as DefaultSource

__all__ = ["DefaultSource"]
