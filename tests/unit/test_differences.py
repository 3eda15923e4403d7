"""docs/differences.md and the tests that hold it."""

from __future__ import annotations

import re

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "differences.md").read_text()


def test_every_defect_of_the_page_has_a_test_of_its_name() -> None:
    rows = {int(number) for number in re.findall(r"^\| D(\d+) \|", PAGE, re.MULTILINE)}
    assert rows == set(range(1, 28))
    tested: set[int] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for names in re.findall(r"def test_defects?_((?:d\d\d_)+)", path.read_text()):
            tested |= {int(number) for number in re.findall(r"d(\d\d)", names)}
    assert rows - tested == set()


def test_the_numbers_of_the_differences_are_unique() -> None:
    numbers = re.findall(r"^\| (E\d+) \|", PAGE, re.MULTILINE)
    assert len(numbers) == len(set(numbers)) > 30
