"""A tier in Apache Spark: the data source `rocketmq_tiered`, and a runner for the jobs."""

from tieredstore.spark.direct_read import read
from tieredstore.spark.registration import enable
from tieredstore.spark.session import session
from tieredstore.spark.shipping import build_zip, ship

__all__ = ["build_zip", "enable", "read", "session", "ship"]
