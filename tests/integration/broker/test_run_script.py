"""The tests run `scripts/run` as a new user does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT


def run_until_ready(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, ROOT / "scripts" / "run.py", "--folder", folder, "--free-ports"]
    process = subprocess.Popen(
        [*map(str, command), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "Ctrl-C stops it" in line:
            return process, shown
    pytest.fail(shown)


@pytest.mark.parametrize("arguments", [(), ("--s3",)])
def test_it_says_where_clients_connect_and_stops_cleanly(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    process, shown = run_until_ready(folder, *arguments)
    try:
        found = re.search(r"topic list --at (\S+)", shown)
        assert found is not None
        listed = subprocess.run(
            [sys.executable, "-m", "tieredstore", "topic", "list", "--at", found[1]],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert "TBW102" in listed.stdout, listed.stderr
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert rest.strip() == "stopped"
    assert not (folder / "store" / "abort").exists()


def test_a_folder_of_somebody_else_is_never_used(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "run.py", "--s3", "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
