"""Small files that are either the old or the new version, and data that is on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tieredstore.errors import Unavailable


def sync_file(fd: int, path: Path) -> None:
    """Put a file's data on disk. A failure must not be tried again: what failed may be lost."""
    try:
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        raise Unavailable(f"{path}: sync failed: {error.strerror}", path=str(path)) from error


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in a directory durable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise Unavailable(f"{path}: sync failed: {error.strerror}", path=str(path)) from error


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` under the name: afterwards the file is the new version, on a crash the old or
    the new one. Raises Unavailable; the old version then stays."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise Unavailable(f"{path}: cannot be written: {error.strerror}", path=str(path)) from error
    sync_directory(path.parent)
