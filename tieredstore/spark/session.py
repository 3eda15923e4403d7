"""A Spark session for what this package does."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def session(
    *, app_name: str = "tieredstore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made with `conf` where there is none."""
    builder = SparkSession.builder.appName(app_name)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
