"""Compare a wheel with the tree: every file of the package is in it, and nothing else.

    python scripts/check_wheel.py WHEEL

The tree is read as the build reads it: the links tieredstore/providers and tieredstore/metadata
count as folders. Needs only Python.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tieredstore"
CORE = "tieredstore/message/_core."
"""Path of the compiled core. The wheel contains it if a compiler was available, and the tree
contains it if it was built."""
MODULES = ("pyspark_rocketmq_tiered.py",)


def list_tree(root: Path) -> set[str]:
    """Return the files that a wheel must contain, as paths below `root`."""
    return {*MODULES, *_list_folder(root / PACKAGE, root)}


def _list_folder(folder: Path, root: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.iterdir():
        if path.name == "__pycache__":
            continue
        name = path.relative_to(root).as_posix()
        found |= _list_folder(path, root) if path.is_dir() else set() if _is_core(name) else {name}
    return found


def _is_core(name: str) -> bool:
    return name.startswith(CORE) and name.endswith((".so", ".pyd"))


def list_wheel(wheel: Path) -> set[str]:
    """Return the files that a wheel would install, without the metadata of the wheel itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {name for name in names if not name.partition("/")[0].endswith(".dist-info")}


def compare(wheel: Path, root: Path) -> list[str]:
    """Return one line for each file that is missing in the wheel or does not belong there."""
    wanted = list_tree(root)
    found = {name for name in list_wheel(wheel) if not _is_core(name)}
    return [
        *(f"{name} is not in the wheel" for name in sorted(wanted - found)),
        *(f"{name} is in the wheel, but not in the package" for name in sorted(found - wanted)),
    ]


def main() -> None:
    wheel = Path(sys.argv[1])
    differences = compare(wheel, ROOT)
    if differences:
        raise SystemExit("\n".join([f"{wheel.name}:", *differences]))
    names = list_wheel(wheel)
    core = "with" if any(map(_is_core, names)) else "without"
    print(f"{wheel.name} holds the {len(names)} files of the package, {core} the compiled core")


if __name__ == "__main__":
    main()
