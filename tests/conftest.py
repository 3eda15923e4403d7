"""Fixtures for all tests: stores that real Java brokers wrote."""

from __future__ import annotations

import gc
import json
import os
import signal
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import copy_store
from tests.kit.paths import FIXTURES

with suppress(ModuleNotFoundError):  # the environments of scripts/spark_versions.py lack it
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")  # no test asserts a time
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background by a shell
    # Child processes would inherit this, and ignore the SIGINT that tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
EXTRACT_SAFELY: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4


def _make_read_only(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o444)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Small hand-checkable stores (`tests/fixtures/golden/README.md`)."""
    return FIXTURES / "golden"


@pytest.fixture(scope="session")
def public_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store and tier of a Java broker that stopped cleanly. manifest.json lists its
    messages. Copy before writing."""
    return _unpack("public-a", tmp_path_factory)


def _unpack(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(name)
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(root, **EXTRACT_SAFELY)
    _make_read_only(root / name)
    return root / name


@pytest.fixture(scope="session")
def public_rocksdb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of a Java broker without a tier, whose consume queues are in RocksDB.
    manifest.json lists its messages. Copy before writing."""
    return _unpack("public-rocksdb", tmp_path_factory)


@pytest.fixture(scope="session")
def crash_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of a killed Java broker (`before/`), and the same store after Java's
    recovery. Copy before writing."""
    root = tmp_path_factory.mktemp("crash-c")
    with tarfile.open(FIXTURES / "crash-c.tar.xz") as archive:
        archive.extractall(root, **EXTRACT_SAFELY)
    _make_read_only(root / "crash-c")
    return root / "crash-c"


@pytest.fixture
def public_a_copy(public_a: Path, tmp_path: Path) -> Path:
    """A writable copy of `public_a`."""
    return copy_store(public_a / "store", tmp_path / "store")


@pytest.fixture(scope="session")
def public_a_manifest(public_a: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((public_a / "manifest.json").read_bytes())
    return manifest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the Spark tests first, because Py4J waits with `select`, which accepts only file
    descriptors below 1,024. Later in a run, crash tests leave many files open."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude the collected tests from garbage collection, so that collections stay fast."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run if a test was skipped and TIEREDSTORE_NO_SKIPS is set, as in CI."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("TIEREDSTORE_NO_SKIPS") and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
