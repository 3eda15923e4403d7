"""Disk space before it is written through a mapping.

A store into a hole of a mapped file for which the disk has no space kills the process (SIGBUS);
asking for the space first turns that into an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from tieredstore.errors import Unavailable

_BLOCK_BYTES = 1 << 20


def allocate(fd: int, path: Path, position: int, length: int) -> None:
    """Make sure that [position, position + length) of a file has disk space; its bytes stay.

    Raises Unavailable when there is not enough.
    """
    if length <= 0:
        return
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, position, length)
        else:
            rewrite(fd, position, length)
    except OSError as error:
        raise Unavailable(
            f"{path}: no disk space for {length} bytes at {position}: {error.strerror}",
            path=str(path),
            offset=position,
        ) from error


def rewrite(fd: int, position: int, length: int) -> None:
    """The same where the system has no such call: write back what is there. Raises OSError."""
    end = position + length
    while position < end:
        data = os.pread(fd, min(_BLOCK_BYTES, end - position), position)
        if not data:
            raise OSError(0, f"file ends at {position}, expected {end}")
        position += os.pwrite(fd, data, position)
