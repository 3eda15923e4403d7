"""The examples of docs/python.md run as they stand, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.paths import ROOT
from tests.kit.tier_builder import small_tier

PAGE = (ROOT / "docs" / "python.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
TIERS_AND_JOBS = SECTIONS["A tier"] + SECTIONS["Jobs over a tier"]


def fill_store(root: Path) -> None:
    with tieredstore.open_store(
        {"storePathRootDir": str(root), "mappedFileSizeCommitLog": "1048576"}
    ) as store:
        for number in range(3):
            store.put_message(tieredstore.Message.create("invoices", b"%d" % number))


def test_the_examples_of_tiers_and_jobs_print_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    small_tier(tmp_path)
    (tmp_path / "state").rename(tmp_path / "lost")
    fill_store(tmp_path / "store")
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TIERS_AND_JOBS, re.DOTALL)
    assert len(examples) == TIERS_AND_JOBS.count("```python") == 4
    names: dict[str, Any] = {}
    for code, output in examples:
        exec(code.replace("/data/", f"{tmp_path}/"), names)
        assert capsys.readouterr().out == output
