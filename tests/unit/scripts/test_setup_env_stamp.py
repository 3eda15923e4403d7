"""`scripts/python.sh` detects whether an environment is complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import setup_env
from tests.kit.paths import ROOT

CORE = sorted(path.name for path in (ROOT / "tieredstore" / "message").glob("_*.[ch]"))
INPUTS = (
    "pyproject.toml",
    "scripts/constraints.txt",
    "setup.py",
    *(f"tieredstore/message/{name}" for name in CORE),
)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with an environment for the extra `tables`."""
    clone = tmp_path / "clone"
    for name in (*INPUTS, "scripts/python.sh"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, clone / name)
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for name in ("ROOT", "VENV", "CONSTRAINTS", "CORE"):
        there = getattr(setup_env, name)
        moved = (
            tuple(clone / path.relative_to(ROOT) for path in there)
            if isinstance(there, tuple)
            else clone / there.relative_to(ROOT)
        )
        monkeypatch.setattr(setup_env, name, moved)
    setup_env.stamp("tables").write_text(setup_env.fingerprint())
    return clone


def is_set_up(clone: Path, kind: str, **variables: str) -> bool:
    command = 'set -euo pipefail; . scripts/python.sh -; is_set_up "$1"'
    without = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run(
        ["bash", "-c", command, "bash", kind],
        cwd=clone,
        env={**without, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")
    return done.returncode == 0


def test_what_holds_a_kind_is_the_same_in_both(clone: Path) -> None:
    wanted = setup_env.fingerprint()
    for kind in setup_env.EXTRAS:
        assert is_set_up(clone, kind) == setup_env.is_complete(kind, wanted), kind
    assert is_set_up(clone, "core")
    assert not is_set_up(clone, "spark")


@pytest.mark.parametrize("name", INPUTS)
def test_what_the_environment_is_made_from_has_changed(clone: Path, name: str) -> None:
    with (clone / name).open("a") as file:
        file.write("\n# other\n")
    assert not is_set_up(clone, "core")
    assert not setup_env.is_complete("core", setup_env.fingerprint())


def test_the_interpreter_or_the_clone_is_another_one(clone: Path, tmp_path: Path) -> None:
    clone.rename(tmp_path / "moved")
    assert not is_set_up(tmp_path / "moved", "core")
    (tmp_path / "moved").rename(clone)
    assert is_set_up(clone, "core")
    assert not is_set_up(clone, "core", PYTHON="python3.12")
    python = clone / ".venv" / "bin" / "python"
    python.unlink()
    assert not is_set_up(clone, "core")
    python.symlink_to("/bin/sh")
    assert not is_set_up(clone, "core")


def test_a_stamp_of_an_earlier_version_or_a_torn_one_counts_for_nothing(clone: Path) -> None:
    whole = setup_env.fingerprint()
    lines = whole.splitlines()
    for text in (lines[0], "\n".join(lines[:2]), "", "x\n" * 4):
        setup_env.stamp("tables").write_text(text)
        assert not is_set_up(clone, "core")
    setup_env.stamp("tables").write_text(whole)
    assert is_set_up(clone, "core")


def test_python_may_keep_the_bytecode_of_packages_that_are_installed_without(clone: Path) -> None:
    command = (
        '. scripts/python.sh tables; "$PYTHON" -c "import sys; print(sys.dont_write_bytecode)"'
    )
    without = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=clone,
        env={**without, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
