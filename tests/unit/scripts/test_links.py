"""A checkout without symbolic links fails with a message that names the remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

SENTENCE = (
    "tieredstore/{link} is a file, expected a symbolic link: "
    "clone again with `git clone -c core.symlinks=true`, on Windows in WSL\n"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone without symbolic links, with only the files that the set-up reads first."""
    for name in ("setup.py", "scripts/python.sh", "scripts/run"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tieredstore").mkdir()
    return tmp_path


@pytest.mark.parametrize("link", ["providers", "metadata"])
@pytest.mark.parametrize(
    ("command", "prefix"), [(["scripts/run"], "setup: "), ([sys.executable, "setup.py"], "")]
)
def test_a_link_that_is_a_file_is_told(
    clone: Path, link: str, command: list[str], prefix: str
) -> None:
    (clone / "tieredstore" / link).write_text(f"../{link}")  # as git writes it without links
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == prefix + SENTENCE.format(link=link)
    assert done.stdout == ""


def test_the_links_are_links() -> None:
    for name in ("providers", "metadata"):
        assert (ROOT / "tieredstore" / name).readlink() == Path("..") / name
