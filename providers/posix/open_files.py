"""A bounded set of open file descriptors, shared by all segments of a Posix tier."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from itertools import islice

from tieredstore.errors import Invalid
from tieredstore.providers.posix.calls import PosixCalls

_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})


class OpenFile:
    """A descriptor and who uses it; `fd` is good until it is given back."""

    __slots__ = ("cached", "fd", "identity", "users", "writable")

    def __init__(self, fd: int, writable: bool, identity: tuple[int, int]) -> None:
        self.fd = fd
        self.writable = writable
        self.identity = identity
        self.users = 1
        self.cached = False


class OpenFiles:
    """Least recently used descriptors are closed first, never one that is in use.

    At most `limit` stay open; more than that only while so many calls run at once.
    """

    def __init__(self, limit: int, calls: PosixCalls) -> None:
        if limit < 1:
            raise Invalid(f"max_open_files must be at least 1, found {limit}")
        self._limit = limit
        self._calls = calls
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._forgotten = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._files)

    def take(self, path: str, flags: int = os.O_RDONLY) -> OpenFile:
        """A file open at least for what `flags` say, not closed before `give_back`. Raises
        OSError."""
        writable = flags & os.O_ACCMODE == os.O_RDWR
        with self._lock:
            if self._closed:
                raise Invalid(f"the provider of {path} is closed", path=path)
            entry = self._files.get(path)
            if entry is not None and (entry.writable or not writable):
                entry.users += 1
                self._files.move_to_end(path)
                return entry
            forgotten = self._forgotten
        return self._open_and_keep(path, flags, writable, forgotten)

    def take_open(self, path: str) -> OpenFile | None:
        """A file that is open already, else None: never a call that may block."""
        with self._lock:
            entry = self._files.get(path)
            if entry is not None:
                entry.users += 1
                self._files.move_to_end(path)
            return entry

    def give_back(self, entry: OpenFile) -> None:
        with self._lock:
            entry.users -= 1
            if not entry.users and not entry.cached:
                self._calls.close(entry.fd)
            elif len(self._files) > self._limit:
                self._evict(self._limit)

    def forget(self, path: str, *, unless: tuple[int, int] | None = None) -> None:
        """Do not use the descriptor of `path` again, unless it is that (device, inode)."""
        with self._lock:
            entry = self._files.get(path)
            if entry is not None and entry.identity == unless:
                return
            self._forgotten += 1
            if entry is not None:
                self._drop(path, entry)

    def close(self) -> None:
        """Close all; later borrows raise Invalid. Idempotent."""
        with self._lock:
            self._closed = True
            for path, entry in list(self._files.items()):
                self._drop(path, entry)

    def _open_and_keep(self, path: str, flags: int, writable: bool, forgotten: int) -> OpenFile:
        fd = self._open(path, flags)
        try:
            found = self._calls.fstat(fd)
        except BaseException:
            self._calls.close(fd)
            raise
        entry = OpenFile(fd, writable, (found.st_dev, found.st_ino))
        with self._lock:
            # a file deleted while it was opened must not come back through its old descriptor
            if forgotten == self._forgotten and not self._closed:
                current = self._files.get(path)
                if current is not None:
                    self._drop(path, current)
                self._files[path] = entry
                entry.cached = True
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
        idle = ((path, entry) for path, entry in self._files.items() if not entry.users)
        for path, entry in list(islice(idle, surplus)):  # the oldest: not a walk of all of them
            self._drop(path, entry)

    def _drop(self, path: str, entry: OpenFile) -> None:
        del self._files[path]
        entry.cached = False
        if not entry.users:
            self._calls.close(entry.fd)
