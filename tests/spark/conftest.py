"""Fixtures of the Spark tests. All tests share one session and one cluster, because both start
slowly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kit.paths import ROOT
from tests.kit.spark.cluster import CLUSTER_CONF, Cluster, cluster_of_two, end, settings_in
from tieredstore.errors import Invalid
from tieredstore.spark.sessions.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def java() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    try:
        java_home()
    except Invalid as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session in this process, with the master local[2]."""
    from tieredstore.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # tasks import from the tests
        conf = {"spark.master": "local[2]", **settings_in(tmp_path_factory.mktemp("spark"))}
        session_ = session(app_name="tests", conf=conf)
        try:
            yield session_
        finally:
            end(session_)


@pytest.fixture(scope="session")
def cluster(java: None) -> Iterator[Cluster]:
    """A Spark session with two executors, in another process. `cluster.call(function, …)` runs a
    function in that process."""
    with cluster_of_two(CLUSTER_CONF) as cluster:
        yield cluster
