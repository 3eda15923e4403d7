"""docs/faults.md and the tests that it names."""

from __future__ import annotations

import re

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\| ([A-Z]\d\d) \| .* \| ([^|]*) \|$", PAGE, re.MULTILINE)


def names_of_tests() -> set[str]:
    folders = (ROOT / "tests", ROOT / "tieredstore" / "testing")
    files = [path for folder in folders for path in folder.rglob("*.py")]
    return {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}


def ids_of(test: str) -> set[str]:
    """The fault ids with which the name of a test begins (those of defects begin with a D)."""
    ids = re.match(r"test_((?:[a-ce-z]\d\d_)*)", test)
    assert ids is not None
    return {found.upper() for found in re.findall(r"[a-z]\d\d", ids[1])}


def test_every_fault_in_the_name_of_a_test_is_on_the_page() -> None:
    tested = {found for test in names_of_tests() for found in ids_of(test)}
    assert len(tested) > 30
    assert tested - {fault for fault, _ in ROWS} == set()


def test_the_ids_of_the_page_are_unique() -> None:
    ids = [fault for fault, _ in ROWS]
    assert len(ids) == len(set(ids)) > 50


def test_every_test_that_the_page_names_is_there() -> None:
    assert set(re.findall(r"`(test_\w+)`", PAGE)) - names_of_tests() == set()


def test_a_fault_without_a_test_of_its_own_says_so() -> None:
    """And one that says so has none."""
    for fault, tested in ROWS:
        own = [test for test in re.findall(r"`(test_\w+)`", tested) if fault in ids_of(test)]
        assert bool(own) != tested.startswith("Not yet"), fault


def test_a_fault_that_is_not_tested_yet_is_not() -> None:
    tested = {found for test in names_of_tests() for found in ids_of(test)}
    assert [fault for fault, text in ROWS if text.startswith("Not yet") and fault in tested] == []
