"""File locks, which the system releases when their owner exits."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.forks import close_private, hold_forks, keep_private
from tieredstore.errors import Busy

HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""Error numbers for a lock that another owner holds."""
_MAX_ATTEMPTS: Final = 10
_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.01
_HELD_LOCKS: Final = Path("/proc/locks")
_LOCK_FIELDS: Final = 8


def lock_file(path: str | Path, mode: int = 0o644) -> int:
    """Open a file, creating it if needed, and take its exclusive `flock`. A forked child does not
    share the lock. If the file is removed or replaced during the call, the new file is opened and
    locked. Raises BlockingIOError if any process, including this one, holds the lock, and other
    OSErrors like the system. Use `unlock_file` to release the lock."""
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
    """Release the lock that `lock_file` took."""
    close_private(fd)


@contextmanager
def hold_lock(path: Path, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Lock a small file against all other processes while the caller reads, changes and writes it.
    The lock is on a separate file, `.<name>.lock`, which is never deleted. Raises Busy if another
    owner holds the lock for `wait_s` seconds, Invalid, Unavailable."""
    lock = path.with_name(f".{path.name}.lock")
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fd = lock_file(lock)
            break
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise Busy(
                    f"{path}: another process has changed it for {wait_s:g} s: stop it, or run the "
                    "command again",
                    path=str(path),
                ) from None
            time.sleep(_PAUSE_S)
        except OSError as error:
            raise translate_os_error(error, "lock", lock) from error
    try:
        yield
    finally:
        unlock_file(fd)


def is_locked(path: str | Path) -> bool | None:
    """Return whether a process on this machine holds the lock of `lock_file`, according to the
    system's list of locks. Does not try the lock, because this could make another process fail.
    Returns None if the system does not list locks."""
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
    # 7: FLOCK ADVISORY WRITE 4711 fe:01:131090 0 EOF. A waiting process has "->" after the number.
    lines = [line.split() for line in listed.splitlines()]
    return any(
        line[1] == "FLOCK" and line[5].rpartition(":")[2] == inode
        for line in lines
        if len(line) == _LOCK_FIELDS
    )


def is_file_at(path: str | Path, fd: int) -> bool:
    """Return whether a descriptor refers to the file at `path`. Returns False if this cannot be
    determined."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - text or Path
    except OSError:
        return False
