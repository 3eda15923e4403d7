"""The examples of docs/python.md run unchanged, and print what the page says."""

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


def examples_of(*sections: str) -> list[tuple[str, str]]:
    text = "".join(SECTIONS[section] for section in sections)
    examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(examples) == text.count("```python")
    return list(examples)


def test_the_blocks_of_a_store_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.conf").write_text(BROKER_CONF)
    names: dict[str, Any] = {}
    for code, output in examples_of("A store"):
        exec(code, names)
        assert capsys.readouterr().out == output


def fill_store(root: Path) -> None:
    keys = {"storePathRootDir": str(root), "mappedFileSizeCommitLog": "1048576"}
    with tieredstore.open_store(keys) as store:
        for number in range(3):
            store.put_message(tieredstore.Message.create("invoices", b"%d" % number))


def test_the_blocks_of_a_tier_and_its_jobs_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    small_tier(tmp_path)
    (tmp_path / "state").rename(tmp_path / "lost")
    fill_store(tmp_path / "store")
    names: dict[str, Any] = {}
    for code, output in examples_of("A tier", "Jobs over a tier"):
        exec(code.replace("/data/", f"{tmp_path}/"), names)
        assert capsys.readouterr().out == output


def test_every_block_is_in_a_section_that_is_run() -> None:
    sections = {name for name, text in SECTIONS.items() if "```python" in text}
    assert sections == {"A store", "A tier", "Jobs over a tier"}


def test_what_the_page_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
