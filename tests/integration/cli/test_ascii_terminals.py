"""The commands run in a terminal or a service whose locale has no UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.older import unpack_older


@pytest.mark.parametrize("form", ["table", "ndjson", "csv"])
def test_text_that_is_no_ascii_ends_no_verb_where_the_locale_is_c(
    form: str, tmp_path: Path
) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    names = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONIOENCODING"}
    verb = ["cat", "--store", older.store, "--topic", "old_normal", "--output", form]
    ran = subprocess.run(
        [sys.executable, "-m", "tieredstore", *map(str, verb)],
        env=environment | names,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False), ran.stderr
    if form != "table":
        assert "n-キー1" in ran.stdout.decode("utf-8")
