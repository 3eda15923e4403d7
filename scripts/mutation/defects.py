"""Restore defects of Java, and some of ours, one at a time, and check that a test of each fails.

    python -m scripts.mutation.defects [--list] [NAME …]

`defects.toml` has the correct and the defective lines for each defect of `docs/differences.md` (D1
to D27), and for former defects of this tier. Each defect is applied to a copy of the work tree, and
its tests run there: `test_defect_dNN_…`, or those that the entry names. Fails if these tests pass
with their defect, or fail without it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutation.trial import FAILED_TESTS, Copy

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).with_name("defects.toml")
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Defect:
    """Known defect of former code. Replacing the text `was` by `becomes` in a module restores it.
    `test`: name prefix of the tests that must then fail."""

    name: str
    what: str
    module: str
    was: str
    becomes: str
    test: str

    @classmethod
    def of_java(cls, number: int, **fields: str) -> Defect:
        """Return Java's defect with the given number in `docs/differences.md`."""
        return cls(name=f"D{number}", test=f"test_defect_d{number:02d}_", **fields)

    def apply(self, source: str) -> str:
        """Return the module's source with the defect. Raises SystemExit unless the source contains
        `was` exactly once."""
        if source.count(self.was) != 1:
            raise SystemExit(
                f"{self.name}: {self.module} has its lines {source.count(self.was)} times. "
                f"Mend {PATCHES.name}"
            )
        changed = source.replace(self.was, self.becomes)
        compile(changed, self.module, "exec")
        return changed

    def tests(self, root: Path) -> list[str]:
        """Return the test files of the defect, and the option that selects its tests."""
        files = sorted(
            path.relative_to(root).as_posix()
            for path in (root / "tests").rglob("test_*.py")
            if f"def {self.test}" in path.read_text()
        )
        if not files:
            raise SystemExit(f"{self.name}: no test {self.test}…")
        return [*files, "-k", self.test]


def load_defects() -> list[Defect]:
    """Return the defects in `defects.toml`: those of the Java broker by their number, then those of
    this project."""
    rows = tomllib.loads(PATCHES.read_text())
    java = sorted(rows["defect"], key=lambda row: int(row["number"]))
    return [*(Defect.of_java(**row) for row in java), *(Defect(**row) for row in rows["mended"])]


def try_defect(copy: Copy, defect: Defect) -> str | None:
    """Test a defect. Return the problem, or None if the tests pass without the defect and fail with
    it."""
    path = copy.root / defect.module
    source = path.read_text()
    tests = defect.tests(copy.root)
    if copy.find_exit_code(tests, 1, TIMEOUT_S) != 0:
        return "its tests fail without it"
    try:
        path.write_text(defect.apply(source))
        code = copy.find_exit_code(tests, 1, TIMEOUT_S)
    finally:
        path.write_text(source)
    if code in (FAILED_TESTS, None):  # A hanging test counts as well.
        return None
    return "no test fails with it" if code == 0 else f"its tests end with code {code}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation.defects")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="only show them")
    options = parser.parse_args(arguments)
    chosen = [one for one in load_defects() if not options.names or one.name in options.names]
    if options.list:
        for one in chosen:
            print(f"{one.name}: {one.what} ({one.module})")
        return 0
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="tieredstore-defects-") as folder:
        copy = Copy(ROOT, Path(folder) / "tree")
        for one in chosen:
            wrong = try_defect(copy, one)
            unnoticed += wrong is not None
            print(f"{one.name}: {one.what}: {wrong or 'noticed'}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} are noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
