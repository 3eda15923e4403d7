"""Ownership of a store directory: the `lock` file and the `abort` file.

While it runs, the owner holds an exclusive POSIX lock on byte 0 of `lock`, like Java's
`FileChannel.tryLock(0, 1, false)`, so Java brokers and this store exclude each other. The file
`abort` exists while a store runs and after a crash. A POSIX lock belongs to the process and is lost
when *any* descriptor of the file is closed. So this process remembers its locked files and never
opens them twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.forks import close_private, expect_forks, hold_forks, keep_private
from tieredstore.errors import Fenced

LOCK_FILE = "lock"
ABORT_FILE = "abort"
_LOCK_CONTENT = b"lock"

_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "stat", path) from error
    return status.st_dev, status.st_ino


class StoreLock:
    """Exclusive ownership of one store directory."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises Fenced if another process holds it, and Invalid without write
        permission."""
        with hold_forks(), _held_guard:
            if _identity(self._path) in _held:
                raise self._make_taken_error(f"this process ({os.getpid()})")
            with wrap_os_errors("open the store's lock file", self._path):
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                owner = _lock_owner(fd)
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise self._make_taken_error(
                        f"process {owner}" if owner else "another process"
                    ) from None
                raise translate_os_error(error, "lock", self._path) from error
            try:
                os.pwrite(fd, _LOCK_CONTENT, 0)
                status = os.fstat(fd)
            except OSError as error:
                os.close(fd)
                raise translate_os_error(error, "write", self._path) from error
            self._fd, self._identity = fd, (status.st_dev, status.st_ino)
            _held.add(self._identity)
            keep_private(fd)
            expect_forks(self)

    def _make_taken_error(self, owner: str) -> Fenced:
        return Fenced(
            f"{self._path}: the store is in use by {owner}. Stop it, or open the store read-only",
            path=str(self._path),
        )

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with hold_forks(), _held_guard:
            if self._fd >= 0 and self._identity is not None:
                _held.discard(self._identity)
                close_private(self._fd)
                self._fd, self._identity = -1, None

    def leave_to_parent(self) -> None:
        """Forget the lock in a forked child, because it belongs to the parent process."""
        global _held_guard  # noqa: PLW0603 - a thread may have had it that is not here
        _held_guard = threading.Lock()
        _held.clear()
        self._identity = None


def is_owned(root: Path) -> bool:
    """Return whether any process, including this one, holds the store's lock. Does not take the
    lock."""
    return find_owner(root) is not None


def refuse_owned(root: Path) -> None:
    """Raise Fenced if any process, including this one, holds the store's lock. Does not take the
    lock."""
    owner = find_owner(root)
    if owner is not None:
        path = str(root / LOCK_FILE)
        raise Fenced(f"{path}: the store is in use by {owner}. Stop it first", path=path)


def find_owner(root: Path) -> str | None:
    """Return a description of the holder of the store's lock, or None. Does not take the lock."""
    path = root / LOCK_FILE
    with _held_guard:
        identity = _identity(path)
        if identity is None:
            return None
        if identity in _held:
            return f"this process ({os.getpid()})"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise translate_os_error(error, "open the store's lock file", path) from error
        try:
            owner = _lock_owner(fd)
        finally:
            os.close(fd)
    if owner is None:
        return None
    return f"process {owner}" if owner else "another process"


def _lock_owner(fd: int) -> int | None:
    """Return the id of the process that has locked byte 0, None if it is not locked, or 0 if the
    system cannot tell."""
    if sys.platform == "darwin":  # struct flock: start, length, pid, type, whence
        layout, query = "qqihh", (0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        type_index, pid_index = 3, 2
    else:  # Linux: type, whence, start, length, pid
        layout, query = "hhqqi4x", (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        type_index, pid_index = 0, 4
    try:
        answer = struct.unpack(layout, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(layout, *query)))
    except OSError:
        return 0
    return None if answer[type_index] == fcntl.F_UNLCK else int(answer[pid_index])


def has_abort_file(root: Path) -> bool:
    """Return whether the file `abort` exists: the store is running or was not stopped cleanly."""
    return (root / ABORT_FILE).exists()


def create_abort_file(root: Path) -> None:
    """Mark the store as running, with this process's id, as Java does. The file and the names of
    `abort` and `lock` are then on disk. Raises Exhausted, Unavailable or Invalid. After an error,
    the store must not be written to."""
    path = root / ABORT_FILE
    with wrap_os_errors("write", path):
        FILES.write_synced(path, str(os.getpid()).encode())
        FILES.sync_directory(root)


def delete_abort_file(root: Path) -> None:
    """Mark the store as cleanly stopped, durably."""
    path = root / ABORT_FILE
    with wrap_os_errors("delete", path):
        FILES.unlink(path)
        FILES.sync_directory(root)
