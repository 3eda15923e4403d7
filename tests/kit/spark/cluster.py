"""A Spark cluster in another process, whose executors have only the code that was sent to them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tests.kit.paths import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options. A session runs for minutes, so a quick start matters more than speed."""
TEST_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    # Time limit for a new Python on a busy machine. With the default of 15 s a query fails.
    "spark.python.authenticate.socketTimeout": "120s",
}
CLUSTER_CONF = {"spark.master": "local-cluster[2,1,1024]"}
_spark: SparkSession | None = None


def settings_in(folder: Path) -> dict[str, str]:
    """Return the settings of a Spark session for tests. The warehouse is in `folder`, because Spark
    creates a table's folder even if it refuses the table."""
    return {**TEST_CONF, "spark.sql.warehouse.dir": str(folder / "spark-warehouse")}


def end(spark: SparkSession) -> None:
    """Stop the session and its JVM."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        spark.stop()
        gateway.shutdown()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        SparkContext._gateway = SparkContext._jvm = None


class Cluster:
    """Two executors with one core each. `call` runs a function in the driver's process."""

    def __init__(self, folder: Path, conf: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=context,
            initializer=_start,
            initargs=(str(folder), {**settings_in(folder), **conf}),
        )

    def call(
        self,
        function: Callable[Concatenate[SparkSession, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call `function(spark, *args, **kwargs)`, a function of a module `tests.…`, in the
        driver's process. The function, its arguments and its result are pickled. An error that
        cannot be pickled arrives as a RuntimeError with its name and text."""
        result: Result = self._pool.submit(_call, function, args, kwargs).result()
        return result

    def end(self) -> None:
        self._pool.submit(_end).result()
        self._pool.shutdown()


@contextlib.contextmanager
def cluster_of_two(conf: Mapping[str, str]) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="tieredstore-cluster-") as folder:
        cluster = Cluster(Path(folder), conf)
        try:
            yield cluster
        finally:
            cluster.end()


def executor_python(folder: Path) -> Path:
    """Return an interpreter with all installed packages but without this checkout. `-S` skips the
    .pth file of an editable installation, `-P` the working directory."""
    script = folder / "python-of-executors"
    site = sysconfig.get_path("purelib")
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}" '
        f'exec "{sys.executable}" -S -P "$@"\n'
    )
    script.chmod(0o755)
    return script


def zip_of_tests(path: Path) -> None:
    """Write a zip file with the tests' functions for the executors."""
    with zipfile.ZipFile(path, "w") as archive:
        files = sorted((ROOT / "tests").rglob("*.py"))
        names = [file.relative_to(ROOT) for file in files]
        # A folder without __init__.py is a package only where the zip has an entry for it.
        for folder in sorted({folder for name in names for folder in name.parents} - {Path()}):
            archive.mkdir(folder.as_posix())
        for file, name in zip(files, names, strict=True):
            archive.write(file, name)


def _start(folder: str, conf: Mapping[str, str]) -> None:
    global _spark
    from tieredstore.spark import session, ship

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = str(executor_python(Path(folder)))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _spark = session(app_name="tests", conf=conf)
    ship(_spark)
    tests = Path(folder) / "tests.zip"
    zip_of_tests(tests)
    _spark.sparkContext.addPyFile(str(tests))


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(_spark, *args, **kwargs)
    except Exception as error:
        try:
            pickle.dumps(error)
        except (TypeError, pickle.PicklingError):  # what py4j raises holds its connection
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


def _end() -> None:
    from pyspark.find_spark_home import _find_spark_home

    assert _spark is not None
    application = _spark.sparkContext.applicationId
    end(_spark)
    # The workers of a local cluster leave their files in Spark's own folder.
    shutil.rmtree(Path(_find_spark_home()) / "work" / application, ignore_errors=True)
