"""Tests of reintroducing Java's defects into the code. Each defect names its file, the lines to
change, and the tests that must fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.mutation import defects
from scripts.mutation.defects import Defect, load_defects, try_defect
from scripts.mutation.trial import FAILED_TESTS
from tests.kit.paths import ROOT


def test_each_defect_of_the_page_can_be_brought_back() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    numbers = [int(number) for number in re.findall(r"^\| D(\d+) \|", page, re.MULTILINE)]
    names = [defect.name for defect in load_defects()]
    assert names[: len(numbers)] == [f"D{number}" for number in numbers]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("defect", load_defects(), ids=lambda one: one.name)
def test_its_lines_are_in_the_module_and_a_test_is_named_after_it(defect: Defect) -> None:
    source = (ROOT / defect.module).read_text()
    assert defect.apply(source) != source
    assert defect.tests(ROOT)


class StandIn:
    """A copy of the source tree in which no tests run. `codes` are the exit codes of the next test
    runs."""

    def __init__(self, root: Path, *codes: int | None) -> None:
        self.root = root
        self.codes = list(codes)
        self.sources: list[str] = []

    def find_exit_code(self, tests: list[str], seed: int, timeout_s: float) -> int | None:
        self.sources.append((self.root / "module.py").read_text())
        return self.codes.pop(0)


@pytest.mark.parametrize(
    ("codes", "wrong"),
    [
        ((0, FAILED_TESTS), None),
        ((0, None), None),
        ((0, 0), "no test fails with it"),
        ((FAILED_TESTS, FAILED_TESTS), "its tests fail without it"),
        ((0, 5), "its tests end with code 5"),
    ],
)
def test_a_defect_counts_when_its_tests_fail_with_it_alone(
    tmp_path: Path, codes: tuple[int | None, ...], wrong: str | None
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_defect_d07_it(): ...")
    (tmp_path / "module.py").write_text("right = True\n")
    copy = StandIn(tmp_path, *codes)
    defect = Defect.of_java(7, what="it", module="module.py", was="True", becomes="False")
    assert try_defect(copy, defect) == wrong  # type: ignore[arg-type]
    assert copy.sources == ["right = True\n", "right = False\n"][: len(copy.sources)]
    assert (tmp_path / "module.py").read_text() == "right = True\n"


@pytest.mark.parametrize("source", ["", "True True"])
def test_lines_that_are_not_there_once_are_told(source: str) -> None:
    with pytest.raises(SystemExit, match=f"D7: .* Mend {defects.PATCHES.name}"):
        Defect.of_java(7, what="it", module="module.py", was="True", becomes="False").apply(source)
