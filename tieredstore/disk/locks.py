"""Locks of files, which the system gives up when their owner ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from tieredstore.disk.forks import close_private, hold_forks, keep_private

HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""What the system says of a lock that another one holds."""
_MAX_ATTEMPTS: Final = 10
_HELD_LOCKS: Final = Path("/proc/locks")
_LOCK_FIELDS: Final = 8


def lock_file(path: str | Path, mode: int = 0o644) -> int:
    """Open a file, made where it is missing, and take its exclusive `flock`, which
    `unlock_file` gives up. A forked child has no part in it.

    The file is then the one at `path`: one that was removed or replaced meanwhile is left alone.
    Raises BlockingIOError when somebody holds the lock, this process included; other OSErrors as
    the system does.
    """
    with hold_forks():
        for _ in range(_MAX_ATTEMPTS):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), mode)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_file_at(path, fd):
                    keep_private(fd)
                    return fd
            except OSError as error:
                os.close(fd)
                if error.errno in HELD:
                    raise BlockingIOError(error.errno, error.strerror, str(path)) from None
                raise
            os.close(fd)
    raise OSError(errno.EBUSY, f"it was replaced {_MAX_ATTEMPTS} times", str(path))


def unlock_file(fd: int) -> None:
    """Give the lock up that `lock_file` took."""
    close_private(fd)


def is_locked(path: str | Path) -> bool | None:
    """Tell whether some process holds the lock that `lock_file` takes, by what the system lists: to
    try it would refuse whoever takes it at that instant. None where the system does not tell, as it
    is for processes of other machines."""
    try:
        inode = str(os.stat(path).st_ino)  # noqa: PTH116 - text or Path
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        listed = _HELD_LOCKS.read_text()
    except OSError:
        return None
    # 7: FLOCK  ADVISORY  WRITE 4711 fe:01:131090 0 EOF; whoever waits has "->" behind the number.
    lines = [line.split() for line in listed.splitlines()]
    return any(
        line[1] == "FLOCK" and line[5].rpartition(":")[2] == inode
        for line in lines
        if len(line) == _LOCK_FIELDS
    )


def is_file_at(path: str | Path, fd: int) -> bool:
    """Tell whether a descriptor's file still is the one at `path`; False where that is unknown."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - text or Path
    except OSError:
        return False
