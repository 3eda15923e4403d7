"""Tests of the zip file sent to executors."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import tieredstore
from tests.kit.paths import ROOT
from tieredstore.spark import build_zip


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zip") / "tieredstore.zip"
    build_zip(path)
    return path


def test_it_holds_every_module_and_follows_the_links(zipped: Path) -> None:
    names = set(zipfile.ZipFile(zipped).namelist())
    root = Path(tieredstore.__file__).parent
    folders = {"": root, "providers/": ROOT / "providers", "metadata/": ROOT / "metadata"}
    expected = {
        f"tieredstore/{prefix}{path.relative_to(folder).as_posix()}"
        for prefix, folder in folders.items()
        for path in folder.rglob("*.py")
    }
    assert names == expected | {"pyspark_rocketmq_tiered.py", "tieredstore/py.typed"}


def test_the_same_package_makes_the_same_bytes(zipped: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    module = "tieredstore.spark.package"
    subprocess.run([sys.executable, "-m", module, again], check=True, cwd=ROOT)
    assert again.read_bytes() == zipped.read_bytes()


def test_a_package_that_runs_from_a_zip_sends_that_zip(zipped: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    code = (
        f"import sys; sys.path[:0] = [{str(zipped)!r}, {sysconfig.get_path('purelib')!r}]\n"
        "import tieredstore.spark, pathlib\n"
        f"assert tieredstore.__file__.startswith({str(zipped)!r})\n"
        f"tieredstore.spark.build_zip(pathlib.Path({str(again)!r}))"
    )
    subprocess.run([sys.executable, "-S", "-P", "-c", code], check=True)
    assert again.read_bytes() == zipped.read_bytes()


def test_a_name_that_spark_would_not_import_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tieredstore.spark.package", str(tmp_path / "a.tar")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (
        1,
        "usage: python -m tieredstore.spark.package FILE.zip\n",
    )
