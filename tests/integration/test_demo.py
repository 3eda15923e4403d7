"""The tests run `scripts/demo` without Spark, as a person runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kit.paths import ROOT


def test_its_commands_are_real_and_do_it_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demonstration.main", "--no-spark", "--folder", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "The store has 2,126 messages; 2,103 of them go into a tier." in said
    assert "The other 23 are the broker's own bookkeeping" in said
    assert "Damage     none" in said
    assert "Replayed   2,000 of them" in said
    assert "spark" not in said.lower()
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", said, re.MULTILINE)
    shown = [re.sub(r"\s*\\\n\s*", " ", text) for text in commands]
    assert [re.search(r"tieredstore (\w+)", text)[1] for text in shown] == [  # type: ignore[index]
        *("store", "offload", "ls", "cat", "query", "cat", "verify")
    ]
    assert all(f" demo/{name}" in text for text in shown for name in ["tier"] if "--tier" in text)
    # The commands shown can be typed, and print the same.
    query = next(text for text in shown if " query " in text)
    command = query.replace(
        str(ROOT / "scripts" / "tieredstore"), f"{sys.executable} -m tieredstore"
    )
    again = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout in said
    assert len(again.stdout.splitlines()) == 2
