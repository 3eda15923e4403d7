"""Files named in docs/ exist, and so do pages of docs/ named in other files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

TOP_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = (
    "tieredstore",
    "providers",
    "metadata",
    "tests",
    "benchmarks",
    "scripts",
    "localstack",
    "examples",
)
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MADE_UP = {"job.py", "verb.py"}
"""Names of files that exist only in examples."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_modules_and_folders_that_a_page_names_are_there(page: Path) -> None:
    names = {f"/{name_of(path)}" for path in MODULES}
    text = page.read_text()
    modules = set(re.findall(r"`([\w./-]+\.py)\b", text)) - MADE_UP
    assert [name for name in modules if not any(path.endswith(f"/{name}") for path in names)] == []
    folders = set(re.findall(rf"`((?:{'|'.join(FOLDERS)}|docs)/[\w/]*)`", text))
    assert [folder for folder in folders if not _is_there(folder)] == []


def _is_there(name: str) -> bool:
    return any((ROOT / place).exists() for place in (name, f"{name}.py", f"tieredstore/{name}"))


def test_the_pages_that_modules_name_are_there() -> None:
    named = {
        (name_of(path), page)
        for path in MODULES
        for page in re.findall(r"(?<![\w/])docs/[\w/.-]+\.md", path.read_text())
    }
    assert len(named) > 50
    assert [(path, page) for path, page in sorted(named) if not (ROOT / page).exists()] == []
