"""This package as one zip, for executors without an installation."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import tieredstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATA_SOURCE = "pyspark_rocketmq_tiered.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o100644 << 16


def ship(spark: SparkSession) -> None:
    """Make this package importable in the tasks of a session. Its dependencies (numpy, pyarrow,
    msgspec, …) must be installed on the executors. No-op in local mode. A Spark Connect session
    gets an artifact."""
    if is_connect(spark):
        spark.addArtifacts(str(_make_own_zip()), pyfile=True)
        return
    context = spark.sparkContext
    master = str(context.master)
    if master == "local" or master.startswith("local["):
        return
    path = _make_own_zip()
    if path.name not in {str(sent).rpartition("/")[2] for sent in context.listFiles}:
        context.addPyFile(str(path))
        # The driver's process that plans a stream does not get files that were sent.
        known = context.environment.get("PYTHONPATH")
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), known)))


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a Spark Connect session, without JVM and SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def build_zip(path: Path) -> None:
    """Write the installed package to `path`, for `spark-submit --py-files` or `addPyFile`. The zip
    is reproducible."""
    loader = getattr(tieredstore, "__loader__", None)
    if isinstance(loader, zipimport.zipimporter):
        shutil.copyfile(loader.archive, path)
        return
    root = Path(tieredstore.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(_files(root)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = _FILE_MODE
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.read_bytes())


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and source path of each file in the zip. In a clone of the repository, folders
    may be links."""
    yield _DATA_SOURCE, root.parent / _DATA_SOURCE
    folders = [root]
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir() and path.name != "__pycache__":
                folders.append(path)
            elif path.suffix == ".py" or path.name == "py.typed":
                yield f"{root.name}/{path.relative_to(root).as_posix()}", path


@functools.cache
def _make_own_zip() -> Path:
    """Write a zip with its digest in the name, because Spark rejects a file with the same name and
    other bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tieredstore-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / "built.zip"
    build_zip(built)
    digest = hashlib.sha256(built.read_bytes()).hexdigest()[:12]
    return built.rename(folder / f"tieredstore-{tieredstore.__version__}-{digest}.zip")
