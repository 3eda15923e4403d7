"""The tutorials run from top to bottom, and print the shown output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tests.kit.tutorial import matches, read_blocks, run_page

TUTORIALS = ROOT / "docs" / "tutorials"


def environment(folder: Path) -> dict[str, str]:
    """Environment of a reader, in which `python` is the interpreter of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_STATE_HOME": str(folder / "state-home")}


def test_an_application_is_tested(tmp_path: Path) -> None:
    page = (TUTORIALS / "test-an-application.md").read_text()
    assert run_page(page, tmp_path, environment(tmp_path)) == 1


def test_a_java_history_goes_to_s3(tmp_path: Path) -> None:
    page = (TUTORIALS / "java-history-in-s3.md").read_text()
    for name in ("tests", "localstack"):
        (tmp_path / name).symlink_to(ROOT / name)

    def change(commands: str) -> str:
        return re.sub(r"localstack/(up|down)", r"localstack/\1 --run-dir run", commands)

    try:
        assert run_page(page, tmp_path, environment(tmp_path), change) == 12
    finally:
        down = [str(ROOT / "localstack" / "down"), "--run-dir", str(tmp_path / "run")]
        subprocess.run(down, check=False, capture_output=True)
    assert not (tmp_path / "java").exists()


def test_a_tier_is_analysed(tmp_path: Path) -> None:
    page = (TUTORIALS / "analyse-a-tier.md").read_text()
    assert run_page(page, tmp_path, environment(tmp_path)) == 7
    assert (tmp_path / "revenue.png").read_bytes()[:4] == b"\x89PNG"


def test_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = "```sh\necho one; echo two\n```\n\n```text\none\n…\n```\n"
    assert run_page(page, tmp_path, environment(tmp_path)) == 1
    with pytest.raises(AssertionError, match="printed:\none\ntwo"):
        run_page(page.replace("one\n…", "one"), tmp_path, environment(tmp_path))
    with pytest.raises(AssertionError, match="failed"):
        run_page("```sh\nfalse\n```\n", tmp_path, environment(tmp_path))
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_page("```python\n1 / 0\n```\n", tmp_path, environment(tmp_path))
    assert matches("a … c\n", "a b c  \n")
    assert not matches("a\n", "a\nb\n")
    assert read_blocks("```python\nx\n```\n")[0].output is None
