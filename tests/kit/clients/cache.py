"""What is built or resolved once on a machine: a folder of the user's cache for each set of inputs.

The folder's name holds a digest of the inputs (sources, lists of dependencies), so that a change of
them builds anew, beside the old one. `$CLIENTS_CACHE` moves the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

STAMP = "done"
"""Written last: a folder without it is half built, and is built again."""


def build_once(name: str, inputs: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """The folder that `build` fills from these input files, built unless it is there already.

    Several processes may ask at once: one builds, the others wait. Raises what `build` raises.
    """
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
