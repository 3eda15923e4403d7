"""Folder of the demo. Only files that the demo has created are removed."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

from scripts.demonstration.arguments import BUNDLED, MARK, ROOT, Options

_BUNDLE = ROOT / "tests" / "fixtures" / "public-a.tar.xz"
_EXTRACT_SAFELY: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4


def prepare(options: Options) -> list[str]:
    """Create the folder, and remove the files of an earlier run. Return the names of the files that
    stay."""
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    # First of all: a folder without it is foreign.
    (folder / MARK).touch()
    if not options.keep:
        for name in options.made:
            remove(folder / name)
    return sorted({path.name for path in folder.iterdir()} - {MARK, *options.made})


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unpack_store(folder: Path) -> tuple[Path, Path]:
    """Unpack the bundled store. Return the store and its broker.conf."""
    target = folder / BUNDLED
    if not target.exists():
        with tarfile.open(_BUNDLE) as archive:
            wanted = ("public-a/store", "public-a/broker.conf")
            members = [found for found in archive.getmembers() if found.name.startswith(wanted)]
            archive.extractall(target, members=members, **_EXTRACT_SAFELY)
    return target / "public-a" / "store", target / "public-a" / "broker.conf"
