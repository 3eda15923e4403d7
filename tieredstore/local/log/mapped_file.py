"""One fixed-size file, mapped into memory for reading and appending.

The file is sparse when it is made; disk space is reserved a stretch ahead of the writer, so that a
full disk is an error of `reserve` and never a signal in the middle of a copy. Descriptors are open
only while they are used: the mapping keeps the one it needs.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
from pathlib import Path

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.sync import allocate, sync_file
from tieredstore.errors import Corrupt

RESERVE_BYTES = 16 << 20
TOUCH_BYTES = 1 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14; Python has no name for it yet."""


class MappedFile:
    """Bytes [from_offset, from_offset + size) of an address space.

    Mapped at first use. Views of it stay valid while they are referenced, also after `close`.
    """

    __slots__ = ("_map", "_reserved", "_view", "from_offset", "path", "size")

    def __init__(self, path: Path, from_offset: int, size: int) -> None:
        self.path = path
        self.from_offset = from_offset
        self.size = size
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._reserved = 0

    @classmethod
    def create(cls, path: Path, from_offset: int, size: int) -> MappedFile:
        """Make the file, filled with zeros. Raises Unavailable; then there is no file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise translate_os_error(error, "create", path) from error
        file = cls(path, from_offset, size)
        try:
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)
            file.reserve(1)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise translate_os_error(error, f"make {size} bytes long", path) from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return file

    @property
    def map(self) -> mmap.mmap:
        """The writable mapping. Raises Corrupt when the file no longer has its size."""
        if self._map is None:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    length = os.fstat(fd).st_size
                    if length != self.size:
                        raise Corrupt(
                            f"{self.path}: expected {self.size} bytes, found {length}",
                            path=str(self.path),
                        )
                    self._map = mmap.mmap(fd, self.size)
                finally:
                    os.close(fd)
            except OSError as error:
                raise translate_os_error(error, "map", self.path) from error
        return self._map

    @property
    def view(self) -> memoryview:
        """The whole file."""
        if self._view is None:
            self._view = memoryview(self.map)
        return self._view

    def reserve(self, end: int) -> int:
        """Make sure that bytes [0, end) have their place on disk; returns up to where they have
        (more than asked). Raises Unavailable when the disk is full."""
        if end <= self._reserved:
            return self._reserved
        start = self._reserved
        length = min(-(-end // RESERVE_BYTES) * RESERVE_BYTES, self.size) - start
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                allocate(fd, start, length)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise translate_os_error(
                    error, f"reserve {length} bytes at {start}", self.path
                ) from error
        self._reserved = start + length
        return self._reserved

    def touch(self, start: int, end: int) -> int:
        """Bring the pages of reserved bytes [start, end) into memory in one call, which takes a
        third of the time that a fault a page does; returns up to where they were (more than
        asked, never more than is reserved)."""
        start -= start % mmap.PAGESIZE
        end = min(max(end, start + TOUCH_BYTES), self._reserved)
        if end > start and sys.platform == "linux":
            with contextlib.suppress(OSError):  # an older kernel: the copy faults them in
                self.map.madvise(_POPULATE_WRITE, start, end - start)
        return end

    def sync(self) -> None:
        """Sync the file: what was written is on disk when this returns. (`mmap.flush` would hold
        the GIL.)"""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise translate_os_error(error, "open", self.path) from error
        try:
            sync_file(fd)
        except OSError as error:
            raise translate_os_error(error, "sync", self.path, is_sync=True) from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """Drop the mapping; it goes with the last view of it."""
        if self._view is not None:
            self._view = None
        if self._map is not None:
            with contextlib.suppress(BufferError):  # somebody still reads a message
                self._map.close()
            self._map = None
