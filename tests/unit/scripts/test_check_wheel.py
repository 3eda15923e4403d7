"""Tests of comparing a wheel with the source tree: missing and extra files are reported."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.check_wheel import compare, list_tree
from tests.kit.paths import ROOT


def pack(wheel: Path, names: set[str]) -> Path:
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in sorted(names | {"tieredstore-1.0.dist-info/RECORD"}):
            archive.writestr(name, b"")
    return wheel


def test_the_tree_has_packages_behind_links_and_data_files_and_no_tests() -> None:
    names = list_tree(ROOT)
    assert {
        "pyspark_rocketmq_tiered.py",
        "tieredstore/__init__.py",
        "tieredstore/py.typed",
        "tieredstore/providers/s3/provider.py",
        "tieredstore/metadata/json_store.py",
        "tieredstore/testing/provider/contract.py",
    } <= names
    assert any(name.endswith("/page.html") for name in names)
    assert not any(name.endswith(".pyc") or name.startswith("tests/") for name in names)


def test_a_wheel_of_the_whole_tree_is_right(tmp_path: Path) -> None:
    assert compare(pack(tmp_path / "w.whl", list_tree(ROOT)), ROOT) == []


@pytest.mark.parametrize(
    "lost",
    [
        "pyspark_rocketmq_tiered.py",
        "tieredstore/py.typed",
        "tieredstore/providers/posix/provider.py",
        "tieredstore/metadata/json_store.py",
    ],
)
def test_a_file_that_is_missing_is_named(tmp_path: Path, lost: str) -> None:
    wheel = pack(tmp_path / "w.whl", list_tree(ROOT) - {lost})
    assert compare(wheel, ROOT) == [f"{lost} is not in the wheel"]


def test_a_file_that_does_not_belong_there_is_named(tmp_path: Path) -> None:
    wheel = pack(tmp_path / "w.whl", list_tree(ROOT) | {"tests/kit/paths.py"})
    assert compare(wheel, ROOT) == [
        "tests/kit/paths.py is in the wheel, but not in the package",
    ]
