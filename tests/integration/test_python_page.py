"""The blocks of docs/python.md run as they stand, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
BROKER_CONF = """\
brokerName=broker-a
brokerClusterName=c
storePathRootDir=store
mappedFileSizeCommitLog=1048576
maxHashSlotNum=100
maxIndexNum=400
messageStorePlugIn=tiered
tieredBackendServiceProvider=posix
tieredStoreFilePath=tier
"""


def test_the_blocks_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.conf").write_text(BROKER_CONF)
    names: dict[str, Any] = {}
    assert len(EXAMPLES) == PAGE.count("```python") >= 5
    for code, output in EXAMPLES:
        exec(code, names)
        assert capsys.readouterr().out == output


def test_what_the_page_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
