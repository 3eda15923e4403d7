"""A bounded set of open file descriptors, shared by all consume queues and index files.

A store may hold more queue files than a process may open, so descriptors are reused in
least-recently-used order. One that leaves the set closes when its last user is done with it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from pathlib import Path

from tieredstore.errors import Corrupt, Invalid, TieredStoreError, Unavailable

MAX_OPEN_FILES = 512
_PAGE_BYTES = 4096


def os_error(error: OSError, action: str, path: str | Path) -> TieredStoreError:
    """The error of ours for what the system said about a file."""
    text = f"{path}: cannot {action}: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
        return Invalid(text, path=str(path))
    return Unavailable(text, path=str(path))


class _Descriptor:
    """Closes its file when nobody refers to it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class OpenFiles:
    """Positional reads and writes by path. Thread-safe.

    writable: whether files are opened for writing too; a reader of a store that another process
    owns never does. max_open_files: descriptors kept open.
    """

    def __init__(self, *, writable: bool, max_open_files: int = MAX_OPEN_FILES) -> None:
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._max_open_files = max_open_files
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()

    def _descriptor(self, path: str) -> _Descriptor:
        with self._lock:
            descriptor = self._open.get(path)
            if descriptor is not None:
                self._open.move_to_end(path)
                return descriptor
        try:
            descriptor = _Descriptor(path, self._flags)
        except OSError as error:
            raise os_error(error, "open", path) from error
        with self._lock:
            descriptor = self._open.setdefault(path, descriptor)
            if len(self._open) > self._max_open_files:
                self._open.popitem(last=False)
        return descriptor

    def size(self, path: str) -> int:
        """Length of the file now, bytes. Raises Unavailable or Invalid."""
        try:
            return os.fstat(self._descriptor(path).fd).st_size
        except OSError as error:
            raise os_error(error, "stat", path) from error

    def read_up_to(self, path: str, length: int, position: int) -> bytes:
        """At most `length` bytes from `position` on, fewer only where the file ends."""
        descriptor = self._descriptor(path)
        try:
            data = os.pread(descriptor.fd, length, position)
            if len(data) == length or not data:
                return data
            parts, got = [data], len(data)
            while got < length:
                data = os.pread(descriptor.fd, length - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise os_error(error, f"read {length} bytes at {position}", path) from error
        return b"".join(parts)

    def read(self, path: str, length: int, position: int) -> bytes:
        """Exactly `length` bytes; raises Corrupt where the file ends before."""
        data = self.read_up_to(path, length, position)
        if len(data) != length:
            raise Corrupt(
                f"{path}: expected {length} bytes at {position}, found {len(data)}",
                path=path,
                offset=position,
            )
        return data

    def is_resident(self, path: str, position: int, length: int) -> bool:
        """Whether these bytes are in the page cache; True where the system cannot tell."""
        flags = getattr(os, "RWF_NOWAIT", None)
        if flags is None:
            return True
        fd = self._descriptor(path)
        byte = bytearray(1)
        first = position - position % _PAGE_BYTES
        try:
            for page in range(first, position + length, _PAGE_BYTES):
                if os.preadv(fd.fd, [byte], max(page, position), flags) == 0:
                    return False
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return True
            raise os_error(error, f"read at {position}", path) from error
        return True

    def write(self, path: str, data: bytes, position: int) -> None:
        """All of `data` at `position`. Raises Unavailable when the system takes no more."""
        descriptor = self._descriptor(path)
        try:
            written = os.pwrite(descriptor.fd, data, position)
            while written < len(data):
                written += os.pwrite(descriptor.fd, data[written:], position + written)
        except OSError as error:
            raise os_error(error, f"write {len(data)} bytes at {position}", path) from error

    def create(self, path: str, size_bytes: int) -> None:
        """A new file of zeros. Raises Unavailable, also when the file exists."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            descriptor = _Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.ftruncate(descriptor.fd, size_bytes)
        except OSError as error:
            raise os_error(error, "create", path) from error

    def sync(self, path: str) -> None:
        """Its data is on disk when this returns."""
        try:
            os.fdatasync(self._descriptor(path).fd)
        except OSError as error:
            raise os_error(error, "sync", path) from error

    def forget(self, path: str) -> None:
        """Close one file, before it is deleted or replaced."""
        with self._lock:
            self._open.pop(path, None)

    def close(self) -> None:
        """Close all. A later call opens again what it needs."""
        with self._lock:
            self._open.clear()
