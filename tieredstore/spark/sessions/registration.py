"""Registration of the data source in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.spark.sessions.session import PUSH_DOWN
from tieredstore.spark.sessions.shipping import is_connect, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def enable(spark: SparkSession) -> None:
    """Make `spark.read.format("rocketmq_tiered")` work in a session, which may use Spark Connect.
    This sends the package to the executors, registers the source, and enables filter push-down. A
    warning names S3A settings of the session, because the source does not use them."""
    from tieredstore.spark.options import warn_of_ignored_hadoop_settings
    from tieredstore.spark.source import RocketmqTieredDataSource

    ship(spark)
    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(RocketmqTieredDataSource)
    settings = (
        spark.conf.getAll if is_connect(spark) else dict(spark.sparkContext.getConf().getAll())
    )
    warn_of_ignored_hadoop_settings(
        name
        for name in settings
        # Spark sets others of its own, for speed.
        if any(word in name for word in ("endpoint", "key", "token", "credential", "path.style"))
    )
