"""Compare figures of the repository with their limits in `[tool.figures]` of pyproject.toml.

    python scripts/figures.py [--check]

--check: end with 1 when a figure is above its limit.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ("tieredstore", "providers", "metadata")
GENERATED = ROOT / "docs" / "configuration.md"


def count_page_words() -> int:
    """Count the words of the pages in docs/, without decision records and generated pages."""
    pages = (page for page in _list_files("docs/*.md") if page.parent.name != "adr")
    return sum(_count_words(page) for page in pages if page != GENERATED)


def count_readme_words() -> int:
    return _count_words(ROOT / "README.md")


def count_own_keys() -> int:
    """Count the keys of a broker.conf that Java lacks."""
    rows = GENERATED.read_text().splitlines()
    return sum(row.startswith("|") and "| Ours." in row for row in rows)


def count_any() -> int:
    """Count the uses of `Any` in annotations of the package."""
    trees = (ast.parse(path.read_text()) for path in _list_modules())
    return sum(
        isinstance(node, ast.Name) and node.id == "Any" for tree in trees for node in ast.walk(tree)
    )


def count_advise_lines() -> int:
    folder = ROOT / "tieredstore" / "jobs" / "advising"
    return sum(_count_lines(path) for path in folder.rglob("*.py"))


def count_package_lines() -> int:
    return sum(map(_count_lines, _list_modules()))


FIGURES: dict[str, Callable[[], int]] = {
    "page_words": count_page_words,
    "readme_words": count_readme_words,
    "own_keys": count_own_keys,
    "any_uses": count_any,
    "advise_lines": count_advise_lines,
    "package_lines": count_package_lines,
}


def _list_files(pattern: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--", pattern], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines()]


def _list_modules() -> Iterator[Path]:
    for folder in PACKAGE:
        yield from (path for path in (ROOT / folder).rglob("*.py") if path.is_file())


def _count_words(page: Path) -> int:
    return len(page.read_text().split())


def _count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def main(arguments: list[str]) -> int:
    """Print each figure with its limit. Return 1 if a checked figure is above its limit."""
    limits: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["figures"]
    if limits.keys() != FIGURES.keys():
        raise SystemExit(f"[tool.figures]: expected {sorted(FIGURES)}, found {sorted(limits)}")
    is_above = False
    for name, count in FIGURES.items():
        found, limit = count(), limits[name]
        is_above |= found > limit
        print(f"{name}: {found:,} of at most {limit:,}{' TOO MANY' if found > limit else ''}")
    return int(is_above and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
