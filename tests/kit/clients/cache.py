"""Cache of built programs and resolved dependencies, in the user's cache folder.

Each entry is a folder whose name contains a digest of the inputs (sources, dependency lists).
Changed inputs lead to a new folder. `$CLIENTS_CACHE` overrides the location of the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

STAMP = "done"
"""Name of the file that is written last. A folder without it is incomplete and is built again."""


def build_once(name: str, inputs: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` fills from the input files. An existing folder is reused. If
    several processes call this at the same time, one builds and the others wait. Raises the errors
    of `build`."""
    digest = hashlib.sha256()
    for path in sorted(inputs):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    folder = _cache() / f"{name}-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / STAMP).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / STAMP).touch()
    return folder


def _cache() -> Path:
    if where := os.environ.get("CLIENTS_CACHE"):
        return Path(where)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tieredstore-clients"
