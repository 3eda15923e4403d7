"""Apache Spark: the data source `rocketmq_tiered`, and a runner for the jobs."""

from tieredstore.spark.direct_read import read
from tieredstore.spark.sessions.registration import enable
from tieredstore.spark.sessions.session import session
from tieredstore.spark.sessions.shipping import build_zip, ship

__all__ = ["build_zip", "enable", "read", "session", "ship"]
