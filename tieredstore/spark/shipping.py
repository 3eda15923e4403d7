"""Sends this package to executors that do not have it installed."""

from __future__ import annotations

from pyspark.sql import SparkSession


def ship(spark: SparkSession) -> None:
    """Make this package importable where tasks of the session run."""
    if spark.sparkContext.master.startswith("local["):
        return
