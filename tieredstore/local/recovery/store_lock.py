"""Who owns a store directory: the `lock` file and the `abort` file.

The owner holds an exclusive POSIX lock on byte 0 of `lock` while it runs, as Java's
`FileChannel.tryLock(0, 1, false)` does, so that Java brokers and this store keep each other out.
`abort` exists while a store runs and is left behind by a crash. A POSIX lock belongs to the
process and is lost when *any* descriptor of the file is closed, so files held by this process are
remembered and never opened a second time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.forks import close_private, hold_forks, keep_private, tell_of_forks
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
    """The right to write to one store directory."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises Fenced when somebody holds it, Invalid without write permission."""
        with hold_forks(), _held_guard:
            if _identity(self._path) in _held:
                raise self._make_taken_error(f"this process ({os.getpid()})")
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise translate_os_error(error, "open the store's lock file", self._path) from error
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
            tell_of_forks(self)

    def _make_taken_error(self, owner: str) -> Fenced:
        return Fenced(
            f"{self._path}: the store is in use by {owner}; stop it, or open the store read-only",
            path=str(self._path),
        )

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        with hold_forks(), _held_guard:
            if self._fd >= 0 and self._identity is not None:
                _held.discard(self._identity)
                close_private(self._fd)
                self._fd, self._identity = -1, None

    def leave_to_parent(self) -> None:
        """Forget the lock in a forked child: it is the parent's."""
        global _held_guard  # noqa: PLW0603 - a thread may have had it that is not here
        _held_guard = threading.Lock()
        _held.clear()
        self._identity = None


def is_owned(root: Path) -> bool:
    """Tell whether some process, this one included, holds the store's lock. Takes nothing."""
    return find_owner(root) is not None


def refuse_owned(root: Path) -> None:
    """Raise Fenced when some process, this one included, holds the store's lock. Takes nothing."""
    owner = find_owner(root)
    if owner is not None:
        path = str(root / LOCK_FILE)
        raise Fenced(f"{path}: the store is in use by {owner}; stop it first", path=path)


def find_owner(root: Path) -> str | None:
    """Find who holds the store's lock, for people; None when nobody does. Takes nothing."""
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
    """Process id of who holds byte 0; None when it is free. 0 where the system cannot tell."""
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
    """Tell whether the store runs, or was not stopped cleanly."""
    return (root / ABORT_FILE).exists()


def create_abort_file(root: Path) -> None:
    """Mark the store as running, with this process's id as Java writes it; the file and its name
    are on disk when this returns, as is that of `lock`. Raises Exhausted, Unavailable or Invalid;
    the store is not to be written to then."""
    path = root / ABORT_FILE
    try:
        FILES.write_synced(path, str(os.getpid()).encode())
        FILES.sync_directory(root)
    except OSError as error:
        raise translate_os_error(error, "write", path) from error


def delete_abort_file(root: Path) -> None:
    """Mark the store as cleanly stopped, on disk when this returns."""
    path = root / ABORT_FILE
    try:
        FILES.unlink(path)
        FILES.sync_directory(root)
    except OSError as error:
        raise translate_os_error(error, "delete", path) from error
