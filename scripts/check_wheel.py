"""Compare a wheel with the tree: every file of the package is in it, and nothing else.

    python scripts/check_wheel.py WHEEL

The tree is read as the build reads it: the links tieredstore/providers and tieredstore/metadata are
folders. Needs nothing but Python.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tieredstore"
MODULES = ("pyspark_rocketmq_tiered.py",)


def list_tree(root: Path) -> set[str]:
    """Return the files that a wheel must hold, as paths below `root`."""
    return {*MODULES, *_list_folder(root / PACKAGE, root)}


def _list_folder(folder: Path, root: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        found |= _list_folder(path, root) if path.is_dir() else {path.relative_to(root).as_posix()}
    return found


def list_wheel(wheel: Path) -> set[str]:
    """Return the files that a wheel would install, without what describes the wheel itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {name for name in names if not name.partition("/")[0].endswith(".dist-info")}


def compare(wheel: Path, root: Path) -> list[str]:
    """Return one line for each file that is missing from the wheel or does not belong there."""
    wanted, found = list_tree(root), list_wheel(wheel)
    return [
        *(f"{name} is not in the wheel" for name in sorted(wanted - found)),
        *(f"{name} is in the wheel, but not in the package" for name in sorted(found - wanted)),
    ]


def main() -> None:
    wheel = Path(sys.argv[1])
    differences = compare(wheel, ROOT)
    if differences:
        raise SystemExit("\n".join([f"{wheel.name}:", *differences]))
    print(f"{wheel.name} holds the {len(list_wheel(wheel))} files of the package")


if __name__ == "__main__":
    main()
