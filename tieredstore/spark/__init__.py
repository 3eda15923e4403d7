"""A tier in Apache Spark: the data source `rocketmq_tiered`, and a runner for the jobs."""

from tieredstore.spark.session import session
from tieredstore.spark.shipping import ship

__all__ = ["session", "ship"]
