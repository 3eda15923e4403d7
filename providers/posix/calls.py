"""System calls of the Posix provider, with fallbacks for Linux-only calls. Tests replace this
object to inject faults, and use `portable=True` to run the fallbacks."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from tieredstore.contracts.segment import Buffer
from tieredstore.disk.open_files import FileCalls
from tieredstore.disk.sync import sync_file, sync_folder

_LINUX = sys.platform.startswith("linux")
_NOWAIT_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})


def _vector_limit() -> int:
    try:
        return max(16, os.sysconf("SC_IOV_MAX"))
    except (ValueError, OSError):
        return 16


class PosixCalls(FileCalls):
    """System calls, one per method. All methods raise OSError."""

    def __init__(self, *, portable: bool = not _LINUX) -> None:
        self.vector_limit = _vector_limit()
        self._nowait_flag = 0 if portable else getattr(os, "RWF_NOWAIT", 0)
        self._sync = os.fsync if portable else sync_file
        self._vectored = not portable and hasattr(os, "pwritev")

    def stat(self, path: str) -> os.stat_result:
        return os.stat(path)  # noqa: PTH116 - the seam is the os module's own call

    def read(self, fd: int, length: int, position: int) -> bytes:
        """Read up to `length` bytes. Blocks."""
        return os.pread(fd, length, position)

    def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
        """Read from the page cache. Returns the number of bytes, or None if the read would
        block."""
        if not self._nowait_flag:
            return None
        try:
            return os.preadv(fd, [buffer], position, self._nowait_flag)
        except BlockingIOError:
            return None

    def note_cached_failure(self, error: OSError) -> None:
        """Stop reading from the page cache if the file system does not support it."""
        if error.errno in _NOWAIT_UNSUPPORTED:
            self._nowait_flag = 0

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write at most `vector_limit` buffers. Returns the number of bytes written."""
        if self._vectored:
            return os.pwritev(fd, buffers, position)
        return os.pwrite(fd, b"".join(buffers), position)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """Sync data, and the metadata that is needed to read it, to disk."""
        self._sync(fd)

    def sync_directory(self, path: str) -> None:
        sync_folder(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102 - as above

    def scan(self, path: str) -> list[os.DirEntry[str]]:
        with os.scandir(path) as entries:
            return list(entries)
