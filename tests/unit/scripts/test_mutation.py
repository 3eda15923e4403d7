"""Tests of mutation testing: the mutations, their locations, and the interpretation of test
results."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.mutation.__main__ import WITHOUT_EFFECT, draw, load_exclusions, take_turns
from scripts.mutation.areas import AREAS, Area
from scripts.mutation.sites import Mutant, find_mutants, iterate_modules
from scripts.mutation.trial import Copy, Verdict
from tests.kit.paths import ROOT

SOURCE = '''
"""A module's docstring."""
import logging
_LOG = logging.getLogger(__name__)
SIZE: int = 8

@decorated(1)
def take(count: "int | 3", most=4) -> None:
    """Not this."""
    assert count < 5
    if count < most and not closed:  # a < b
        raise ValueError(f"found {count + 1}")
    _LOG.warning("so %d", 7)
    sync(count)
    total += min(count, 2)
    return
'''


def lines(source: str, kind: str) -> set[str]:
    """Return the changed lines of all mutations of one kind in `source`."""
    data = source.encode()
    found = find_mutants(Path("m.py"), data)
    return {one.changed_line(data) for one in found if one.kind == kind}


def test_each_kind_of_mistake_is_made_and_nothing_else_is_touched() -> None:
    found = find_mutants(Path("m.py"), SOURCE.encode())
    made = {(one.kind, one.changed_line(SOURCE.encode())) for one in found}
    assert made == {
        ("constant", "SIZE: int = (8 + 1)"),
        ("constant", "SIZE: int = (8 - 1)"),
        ("constant", 'def take(count: "int | 3", most=(4 + 1)) -> None:'),
        ("constant", 'def take(count: "int | 3", most=(4 - 1)) -> None:'),
        ("comparison", "if count <= most and not closed:  # a < b"),
        ("condition", "if count < most or not closed:  # a < b"),
        ("condition", "if count < most and (closed):  # a < b"),
        ("condition", "if not (count < most and not closed):  # a < b"),
        ("removed raise", "pass"),
        ("removed call", "pass"),
        ("removed assignment", "pass"),
        ("function", "total += max(count, 2)"),
        ("constant", "total += min(count, (2 + 1))"),
        ("constant", "total += min(count, (2 - 1))"),
        ("removed return", "pass"),
    }
    assert all(one.is_other_program(SOURCE.encode()) for one in found)


@pytest.mark.parametrize(
    ("source", "kind", "wanted"),
    [
        ("x = a <= b < c", "comparison", {"x = a < b < c", "x = a <= b <= c"}),
        ("x = a not in b", "comparison", {"x = a in b"}),
        ("x = a is not b", "comparison", {"x = a is b"}),
        ("x = é == b", "comparison", {"x = é != b"}),
        ("x = a + b - c", "arithmetic", {"x = a - b - c", "x = a + b + c"}),
        ("x = a // b", "arithmetic", {"x = a * b"}),
        ("x = 'a' + b", "arithmetic", set()),
        ("x = a if b else c", "condition", {"x = a if (not (b)) else c"}),
        ("x = True", "constant", {"x = False"}),
        ("x = 0", "constant", {"x = (0 + 1)"}),
        ("def f(): return a", "removed return", {"def f(): return None"}),
        ("def f(): return []", "removed return", set()),
        ("class A(Protocol):\n    def f(self): return 1", "constant", set()),
        ("if TYPE_CHECKING:\n    x = 1", "constant", set()),
    ],
)
def test_mistakes(source: str, kind: str, wanted: set[str]) -> None:
    assert lines(source, kind) == wanted


def test_an_area_s_tests_begin_with_the_one_that_mirrors_the_module() -> None:
    area = Area("local", ("tieredstore/local",), ("tests/unit/local",))
    module = Path("tieredstore/local/log/commit_log.py")
    nearest = "tests/unit/local/log/test_commit_log.py"
    assert area.tests_of(module, ROOT) == [nearest, "tests/unit/local"]
    other = Path("tieredstore/local/topics_that_nobody_knows.py")
    assert area.tests_of(other, ROOT) == ["tests/unit/local"]


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_areas_name_modules_and_tests_that_are_there(area: Area) -> None:
    assert all((ROOT / name).exists() for name in (*area.modules, *area.tests))
    assert list(iterate_modules(ROOT, area.modules))


def test_exclusions_name_lines_that_are_there_and_have_a_reason() -> None:
    """Each exclusion names an existing line and a reason."""
    for module, line, becomes in load_exclusions(WITHOUT_EFFECT):
        source = (ROOT / module).read_bytes()
        made = {(one.line, one.changed_line(source)) for one in find_mutants(Path(module), source)}
        assert (line, becomes) in made, (module, line, becomes)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a package named tieredstore and one test."""
    root = tmp_path / "tree"
    files = {
        "tieredstore/__init__.py": "",
        "tieredstore/limit.py": "def fits(size):\n    return size < 8\n\nSPARE = 3\n",
        "tests/test_limit.py": (
            "from tieredstore.limit import fits\n\n"
            "def test_limit():\n    assert fits(7) and not fits(8)\n"
        ),
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow']\n",
        ".gitignore": "ignored\n",
        "ignored": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Iterator[Copy]:
    copy = Copy(tree, tmp_path / "copy")
    yield copy
    copy.close()


def mutant_of(tree: Path, becomes: str) -> Mutant:
    path = Path("tieredstore/limit.py")
    source = (tree / path).read_bytes()
    (found,) = [one for one in find_mutants(path, source) if one.changed_line(source) == becomes]
    return found


def test_a_mistake_that_a_test_sees_is_killed_and_another_survives(
    tree: Path, copy: Copy, tmp_path: Path
) -> None:
    assert not (tmp_path / "copy" / "ignored").exists()
    tests = ["tests/test_limit.py"]
    before = (tree / "tieredstore/limit.py").read_bytes()
    verdicts = {
        becomes: copy.try_mutant(mutant_of(tree, becomes), tests, 1, 60).verdict
        for becomes in ("return size <= 8", "SPARE = (3 + 1)", "return size < (8 - 1)")
    }
    assert verdicts == {
        "return size <= 8": Verdict.KILLED,
        "SPARE = (3 + 1)": Verdict.SURVIVED,
        "return size < (8 - 1)": Verdict.KILLED,
    }
    assert (tree / "tieredstore/limit.py").read_bytes() == before
    assert copy.run(tests, 1, 60), "the copy is as it was"


def test_what_is_drawn_follows_from_the_seed_and_leaves_exclusions_out(tree: Path) -> None:
    area = Area("limit", ("tieredstore/limit.py",), ("tests",))
    every = draw(area, 100, random.Random(1), set(), tree)
    assert every == draw(area, 100, random.Random(1), set(), tree)
    assert len(every) == 6
    excluded = {("tieredstore/limit.py", "SPARE = 3", "SPARE = (3 + 1)")}
    fewer = draw(area, 100, random.Random(1), excluded, tree)
    assert len(fewer) == 5
    source = (tree / "tieredstore/limit.py").read_bytes()
    assert "SPARE = (3 + 1)" not in {one.changed_line(source) for one in fewer}
    assert len(draw(area, 2, random.Random(1), set(), tree)) == 2


def test_a_survivor_is_shown_as_a_difference(tree: Path) -> None:
    source = (tree / "tieredstore/limit.py").read_bytes()
    shown = mutant_of(tree, "return size <= 8").difference(source)
    assert "tieredstore/limit.py:2" in shown
    assert "-    return size < 8\n+    return size <= 8" in shown


def test_the_command_lists_what_it_would_try() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.mutation", "--list", "--count", "2", "--area", "posix"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("--- providers/posix/") == 2


def test_each_area_has_its_turn() -> None:
    assert [area.name for area in take_turns(AREAS, len(AREAS), 0)] == [a.name for a in AREAS]
    taken = [area.name for seed in range(5, 9) for area in take_turns(AREAS, 4, seed)]
    assert set(taken) == {area.name for area in AREAS}
    assert len(take_turns(AREAS, 99, 3)) == len(AREAS)
