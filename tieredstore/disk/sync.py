"""Data, names and space that are on disk when the call returns. All raise OSError."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK_BYTES = 1 << 20


def sync_file(fd: int) -> None:
    """Put a file's data on disk, and what of its metadata is needed to read it.

    A failure must not be tried again: the system may have dropped what it could not write, and
    calls the next sync a success.
    """
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_path(path: str | Path) -> None:
    """Put the data of a file that is not open on disk."""
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
    """Open a folder, to sync it; returns the descriptor."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)


def allocate(fd: int, position: int, length: int) -> None:
    """Make sure that [position, position + length) of a file has disk space; its bytes stay.

    A store into a hole of a mapped file for which the disk has no space kills the process
    (SIGBUS); asking for the space first turns that into an error.
    """
    if length <= 0:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, position, length)
    else:
        rewrite(fd, position, length)


def rewrite(fd: int, position: int, length: int) -> None:
    """Allocate where the system has no call for it: write back what is there."""
    end = position + length
    while position < end:
        data = os.pread(fd, min(_BLOCK_BYTES, end - position), position)
        if not data:
            raise OSError(0, f"file ends at {position}, expected {end}")
        position += os.pwrite(fd, data, position)
