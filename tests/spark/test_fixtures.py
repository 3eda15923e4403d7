"""Tests of the fixtures that the Spark tests use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.kit.spark.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession


def whereabouts(numbers: Iterable[int]) -> list[tuple[str, str, str]]:
    import tests.kit.spark.cluster
    import tieredstore
    import tieredstore.providers.posix.provider

    del numbers
    modules = (tieredstore, tieredstore.providers.posix.provider, tests.kit.spark.cluster)
    first, second, third = (str(module.__file__) for module in modules)
    return [(first, second, third)]


def whereabouts_on_executors(spark: SparkSession) -> list[tuple[str, str, str]]:
    return spark.sparkContext.parallelize(range(4), 4).mapPartitions(whereabouts).collect()


def test_executors_of_the_cluster_have_the_package_from_the_zip_alone(cluster: Cluster) -> None:
    places = cluster.call(whereabouts_on_executors)
    assert len(places) == 4
    for package, plugin, tests in places:
        archive, member = package.split(".zip/")
        assert archive.rpartition("/")[2].startswith("tieredstore-")
        assert member == "tieredstore/__init__.py"
        assert plugin == f"{archive}.zip/tieredstore/providers/posix/provider.py"
        assert tests.endswith("/tests.zip/tests/kit/spark/cluster.py")


def version_of_python(spark: SparkSession) -> str:
    counted = spark.range(10).selectExpr("sum(id)").collect()[0][0]
    assert counted == 45
    return sys.version


def test_functions_run_where_the_session_is(spark: SparkSession, cluster: Cluster) -> None:
    assert version_of_python(spark) == cluster.call(version_of_python) == sys.version
