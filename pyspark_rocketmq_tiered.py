"""Where Spark looks for the data source `rocketmq_tiered`: top-level modules named `pyspark_*`."""

from tieredstore.spark.source import RocketmqTieredDataSource as DefaultSource

__all__ = ["DefaultSource"]
