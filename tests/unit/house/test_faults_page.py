"""Each fault in docs/faults.md has tests whose names begin with the fault's id."""

from __future__ import annotations

import re

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text()
FAULTS = re.findall(r"^\| ([A-Z]\d\d) \| ", PAGE, re.MULTILINE)


def find_tested_faults() -> set[str]:
    """Return the fault ids in the names of tests. Ids of Java's defects begin with D."""
    folders = (ROOT / "tests", ROOT / "tieredstore" / "testing")
    names = (
        ids
        for folder in folders
        for path in folder.rglob("*.py")
        for ids in re.findall(r"def test_((?:[a-ce-z]\d\d_)+)", path.read_text())
    )
    return {found.upper() for ids in names for found in re.findall(r"[a-z]\d\d", ids)}


def test_every_fault_has_a_test_and_every_tested_fault_is_on_the_page() -> None:
    assert len(FAULTS) > 100
    assert set(FAULTS) == find_tested_faults()


def test_the_ids_of_the_page_are_unique() -> None:
    assert len(FAULTS) == len(set(FAULTS))
