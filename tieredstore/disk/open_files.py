"""Bounded set of open file descriptors, by path, for stores with more files than a process may
open. The least recently used descriptors are closed first. The descriptor of a file that was
deleted through the set is never returned, because bytes written to it would be lost."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict

from tieredstore.disk.at_hand import require_waiting
from tieredstore.errors import Invalid

MAX_OPEN_FILES = 512
_SHARE_CLOSED = 16
"""Divisor of the limit. So many files are closed at once when the limit is exceeded, because
closing several costs little more than closing one."""
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


class FileCalls:
    """System calls of a set of open files. Tests replace this object to inject faults."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # # noqa: PTH108 - the seam is the os module's own call


class OpenFile:
    """Open descriptor with its number of users. As a context manager, it yields the descriptor and
    ends one use at the end of the block."""

    __slots__ = ("_files", "fd", "is_kept", "users", "writable")

    def __init__(self, files: OpenFiles, fd: int, writable: bool) -> None:
        self._files = files
        self.fd = fd
        self.writable = writable
        self.users = 1
        self.is_kept = False

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        self._files.give_back(self)


class OpenFiles:
    """Descriptors that stay open between calls, at most `limit`. Thread-safe. The least recently
    used are closed first. Descriptors in use are never closed, even if they exceed the limit."""

    def __init__(self, limit: int = MAX_OPEN_FILES, calls: FileCalls | None = None) -> None:
        if limit < 1:
            raise Invalid(f"max_open_files must be at least 1, found {limit}")
        self._limit = limit
        self._calls = calls or FileCalls()
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._forgotten = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._files)

    def take(self, path: str, flags: int = os.O_RDONLY) -> OpenFile:
        """Return the file at `path`, opened with at least these `flags`. Use the result in a `with`
        block to get the descriptor. Raises OSError, Invalid after `close`, and NotAtHand inside
        `read_at_hand` if the file is not open yet."""
        writable = flags & os.O_ACCMODE == os.O_RDWR
        with self._lock:
            self._check_open(path)
            entry = self._files.get(path)
            if entry is not None and (entry.writable or not writable):
                entry.users += 1
                self._files.move_to_end(path)
                return entry
            forgotten = self._forgotten
        return self._open_and_keep(path, flags, writable, forgotten)

    def make(self, path: str) -> OpenFile:
        """Create a new file and open it for writing. Use the result like that of `take`. Raises the
        errors of `take`, and FileExistsError."""
        with self._lock:
            self._check_open(path)
            forgotten = self._forgotten
        return self._open_and_keep(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, True, forgotten)

    def open_for_writing(self, path: str) -> OpenFile | None:
        """Open a file for writing, or return None if it is already open for writing. Use the result
        like that of `take`. Raises the errors of `take`."""
        with self._lock:
            self._check_open(path)
            entry = self._files.get(path)
            if entry is not None and entry.writable:
                return None
            forgotten = self._forgotten
        return self._open_and_keep(path, os.O_RDWR, True, forgotten)

    def _check_open(self, path: str) -> None:
        if self._closed:
            raise Invalid(f"{path}: cannot be opened: the provider or store is closed", path=path)

    def find_open(self, path: str) -> OpenFile | None:
        """Return the open descriptor of a file, or None. Never blocks. Another thread may close the
        descriptor at any time, and its number may then refer to another file. Bytes read from it
        are valid only if `is_kept` is True afterwards."""
        try:
            self._files.move_to_end(path)
            return self._files[path]
        except KeyError:  # closed, maybe between the two lines
            return None

    def give_back(self, entry: OpenFile) -> None:
        """End one use of a descriptor. Called at the end of a `with` block."""
        with self._lock:
            entry.users -= 1
            if not entry.users and not entry.is_kept:
                self._calls.close(entry.fd)
            elif len(self._files) > self._limit:
                self._evict(self._limit - self._limit // _SHARE_CLOSED)

    def delete(self, path: str) -> None:
        """Delete a file, and remove its open descriptor from the set. Raises OSError."""
        try:
            self._calls.unlink(path)
        finally:
            self.forget(path)

    def forget(self, path: str, *, unless: tuple[int, int] | None = None) -> None:
        """Stop returning the descriptor of `path`. Call this *after* a file was deleted, created or
        replaced without `delete`. A descriptor opened before is never returned again. `unless`:
        device and inode of the file whose descriptor is kept."""
        with self._lock:
            entry = self._files.get(path)
            if entry is not None and unless is not None and self._is_file(entry, unless):
                return
            self._forgotten += 1
            if entry is not None:
                self._drop(path, entry)

    def _is_file(self, entry: OpenFile, identity: tuple[int, int]) -> bool:
        try:
            found = self._calls.fstat(entry.fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == identity

    def forget_all(self) -> None:
        """Call `forget` for all paths. Later calls reopen the files."""
        with self._lock:
            self._forgotten += 1
            for path in list(self._files):
                self._drop(path, self._files[path])

    def close(self) -> None:
        """Close all files. Later calls of `take` raise Invalid. Idempotent."""
        self._closed = True
        self.forget_all()

    def _open_and_keep(self, path: str, flags: int, writable: bool, forgotten: int) -> OpenFile:
        require_waiting()
        entry = OpenFile(self, self._open(path, flags), writable)
        with self._lock:
            # A file deleted while it was opened must not come back through its old descriptor.
            if forgotten == self._forgotten and not self._closed:
                current = self._files.get(path)
                if current is not None:
                    self._drop(path, current)
                self._files[path] = entry
                entry.is_kept = True
        return entry

    def _open(self, path: str, flags: int) -> int:
        try:
            return self._calls.open(path, flags)
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
        with self._lock:
            self._evict(len(self._files) // 2)
        return self._calls.open(path, flags)

    def _evict(self, limit: int) -> None:
        surplus = len(self._files) - limit
        if surplus <= 0:
            return
        # The oldest first, from a copy: `find_open` changes the order without the lock.
        for path in list(self._files):
            entry = self._files[path]
            if not entry.users:
                self._drop(path, entry)
                surplus -= 1
                if not surplus:
                    return

    def _drop(self, path: str, entry: OpenFile) -> None:
        del self._files[path]
        entry.is_kept = False
        if not entry.users:
            self._calls.close(entry.fd)
