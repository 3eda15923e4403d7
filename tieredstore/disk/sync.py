"""Makes file data, file names and reserved space durable. All of it is on disk when a call returns.
All functions raise OSError."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

_BLOCK_BYTES = 1 << 20
MANY: Final = 256
"""Number of items from which `sync_each` uses threads. Fewer items are synced one by one."""
_THREADS: Final = 32
_Item = TypeVar("_Item")


def sync_each(sync: Callable[[_Item], object], items: Sequence[_Item]) -> None:
    """Call `sync` for each item. `MANY` or more items are synced by several threads, because a disk
    serves concurrent syncs with one flush. Raises the first error. Other items may then be synced
    or not."""
    if len(items) < MANY:
        for item in items:
            sync(item)
        return
    from concurrent.futures import ThreadPoolExecutor  # not loaded for a help text

    with ThreadPoolExecutor(_THREADS, "sync") as pool:
        for _ in pool.map(sync, items):
            pass


def sync_file(fd: int) -> None:
    """Flush a file's data to disk, with the metadata needed to read it. Never retry after a
    failure: the system may have dropped the bytes that it could not write, and report the next sync
    as a success."""
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_path(path: str | Path) -> None:
    """Flush the data of a closed file to disk."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def sync_folder(path: str | Path) -> None:
    """Make creations, renames and removals in a folder durable."""
    fd = open_folder(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_folder(path: str | Path) -> int:
    """Open a folder for syncing. Returns the file descriptor."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)


def allocate(fd: int, position: int, length: int) -> None:
    """Reserve disk space for [position, position + length) of a file without changing its content.
    Raises OSError if the disk is full. Without the reservation, a write to a mapping of the file
    would then raise SIGBUS."""
    if length <= 0:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, position, length)
    else:
        rewrite(fd, position, length)


def rewrite(fd: int, position: int, length: int) -> None:
    """Reserve disk space on a system without `posix_fallocate`, by reading the existing bytes and
    writing them back."""
    end = position + length
    while position < end:
        data = os.pread(fd, min(_BLOCK_BYTES, end - position), position)
        if not data:
            raise OSError(0, f"file ends at {position}, expected {end}")
        position += os.pwrite(fd, data, position)
