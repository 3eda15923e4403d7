"""Fixed-size file that is mapped into memory for appends.

A new file is sparse. Disk space is reserved ahead of the writer. A full disk therefore makes
`reserve` fail instead of raising SIGBUS during a copy. A file truncated by another process raises
no SIGBUS either: the mapping is guarded, and the file is closed for writing. Readers get copies,
never the mapping.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.guarded_mapping import guard
from tieredstore.disk.locks import is_file_at
from tieredstore.disk.sync import allocate, sync_file
from tieredstore.errors import Corrupt, Exhausted, TieredStoreError
from tieredstore.local.log.gathering import Runs, copy_runs
from tieredstore.local.log.memory import (
    POPULATE_WRITE,
    find_address,
    is_resident,
    join_near,
    lock_memory,
    populate,
    unlock_memory,
)

RESERVE_BYTES: Final = 16 << 20
TOUCH_BYTES: Final = 1 << 20
AHEAD_BYTES: Final = 8 << 20
"""Distance ahead of the writer up to which pages are prepared in the background."""
_RESERVE_STEPS: Final = (RESERVE_BYTES, 4 << 20, 1 << 20, 64 << 10, mmap.PAGESIZE)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RESERVING: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL})


class MappingFault:
    """Records a failed access to mapped memory, because the file was truncated or the disk fails.
    `on_fault`: called during that access. It must not keep the mapping alive."""

    __slots__ = ("is_noted", "on_fault")

    def __init__(self) -> None:
        self.is_noted = False
        self.on_fault: Callable[[], object] = lambda: None

    def note(self) -> None:
        """Record that an access to the mapped memory failed."""
        self.is_noted = True
        self.on_fault()


class MappedFile:
    """File with bytes [from_offset, from_offset + size) of an address space. Opened and mapped on
    first use. Not thread-safe, except for `sync` and `touch_ahead`. Views stay valid as long as
    they are referenced, even after `close`.

    `fault`: whether an access to the mapping failed.
    `is_guarded`: whether such failures are recorded, known once the file is mapped.
    """

    __slots__ = (
        "_address",
        "_closing",
        "_fd",
        "_is_locked",
        "_map",
        "_reserved",
        "_touched",
        "_view",
        "fault",
        "from_offset",
        "is_guarded",
        "path",
        "size",
    )

    def __init__(self, path: Path, from_offset: int, size: int) -> None:
        self.path = path
        self.from_offset = from_offset
        self.size = size
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._address = 0
        self._reserved = 0
        self._touched = 0
        self._closing = threading.Lock()
        self.fault = MappingFault()
        self.is_guarded = False
        self._is_locked = False

    @classmethod
    def create(cls, path: Path, from_offset: int, size: int) -> MappedFile:
        """Create the file, filled with zeros. The file and its name are on disk when this returns.
        Raises Exhausted, Unavailable or Invalid. No file exists after an error."""
        file = cls(path, from_offset, size)
        with wrap_os_errors("create", path):
            FILES.make_directory(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        file._fd = fd
        try:
            with wrap_os_errors(f"make {size} bytes long", path):
                os.ftruncate(fd, size)
            file.reserve(1)
            with wrap_os_errors("sync the new file", path):
                sync_file(fd)
                FILES.sync_directory(path.parent)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - crash tests watch the os module's own calls
            raise
        return file

    @property
    def fd(self) -> int:
        """File descriptor, open until `close`. Raises OSError, and Corrupt if the file has the
        wrong size."""
        if self._fd < 0:
            with wrap_os_errors("open", self.path):
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._fd = fd
            try:
                self.check_length()
            except BaseException:
                self.close()
                raise
        return self._fd

    def check_length(self) -> None:
        """Raise Corrupt if the file was truncated or has grown. Its mapping must then not be
        accessed."""
        length = os.lseek(self.fd, 0, os.SEEK_END)
        if length != self.size:
            raise Corrupt(
                f"{self.path}: expected {self.size} bytes, found {length}: the file was changed "
                "underneath",
                path=str(self.path),
            )

    def make_fault_error(self) -> Corrupt:
        """Return the error for a failed access to mapped memory."""
        try:
            self.check_length()
        except Corrupt as error:
            return error
        return Corrupt(
            f"{self.path}: a page could not be read or written: the file was changed underneath, "
            "or the disk fails",
            path=str(self.path),
        )

    def check(self) -> None:
        """Raise Corrupt if the file was truncated, deleted or replaced by another process."""
        if self.fault.is_noted:
            raise self.make_fault_error()
        self.check_length()
        if not is_file_at(self.path, self.fd):
            raise Corrupt(
                f"{self.path}: expected the file that is open, found another one or none",
                path=str(self.path),
            )

    @property
    def map(self) -> mmap.mmap:
        """Return the writable mapping of the file. Raises the errors of `fd`."""
        if self._map is None:
            fd = self.fd
            with wrap_os_errors("map", self.path):
                self._map = mmap.mmap(fd, self.size)
            self.is_guarded = guard(self._map, self.fault.note)
        return self._map

    @property
    def view(self) -> memoryview:
        """View of the whole mapped file."""
        if self._view is None:
            view = memoryview(self.map)
            self._address = find_address(view)
            self._view = view
        return self._view

    def copy(self, start: int, end: int) -> bytes | None:
        """Copy bytes of the mapping. Returns None if the mapping is closed, had a fault, or is not
        completely in memory. The caller then reads from the file, which does not block other
        threads."""
        view = self._view
        if view is None or not is_resident(self._address, start, end):
            return None
        data = bytes(view[start:end])
        return None if self.fault.is_noted else data

    def gather(self, runs: Runs) -> bytearray | None:
        """Copy runs of the log in this file into one buffer. Returns None like `copy`."""
        view, base = self._view, self.from_offset
        if view is None or not all(
            is_resident(self._address, start - base, end - base) for start, end in join_near(runs)
        ):
            return None
        data = copy_runs(view, base, runs)
        return None if self.fault.is_noted else data

    def reserve(self, end: int) -> int:
        """Reserve disk space for bytes [0, end), or more. Returns the end of the reserved space.
        Raises Exhausted if the disk is full."""
        if end <= self._reserved:
            return self._reserved
        start = self._reserved
        for step in _RESERVE_STEPS:
            wanted = min(-(-end // step) * step, self.size)
            try:
                allocate(self.fd, start, wanted - start)
            except OSError as error:
                if error.errno in _FULL and step != _RESERVE_STEPS[-1]:
                    continue
                if error.errno not in _NO_RESERVING:
                    action = f"reserve {wanted - start} bytes at {start}"
                    raise translate_os_error(error, action, self.path, offset=start) from error
            self._reserved = max(self._reserved, wanted)
            break
        return self._reserved

    def warm_up(self, flush_bytes: int | None) -> None:
        """Reserve space for all pages, load them and lock them in memory, as far as disk and system
        allow. `close` unlocks the pages. `flush_bytes`: number of bytes between two syncs, or None
        for no sync. Raises Unavailable if a sync fails."""
        position = unsynced = 0
        while position < self.size:
            try:
                self.reserve(min(position + RESERVE_BYTES, self.size))
            except Exhausted:  # as many as fit
                return
            begin, position = position, self.touch(position, position + TOUCH_BYTES)
            unsynced += position - begin
            if flush_bytes is not None and (unsynced >= flush_bytes or position == self.size):
                with wrap_os_errors("sync", self.path, is_sync=True):
                    sync_file(self.fd)
                unsynced = 0
        self._is_locked = lock_memory(self.map)

    def write(self, position: int, data: memoryview) -> None:
        """Write bytes with a system call instead of the mapping. Raises Unavailable, Corrupt for a
        truncated file, or Exhausted if the disk is full."""
        self.check_length()
        try:
            while data:
                written = os.pwrite(self.fd, data, position)
                data, position = data[written:], position + written
        except OSError as error:
            action = f"write {len(data)} bytes at {position}"
            raise translate_os_error(error, action, self.path, offset=position) from error

    def touch(self, start: int, end: int) -> int:
        """Load the pages of reserved bytes [start, end) into memory in one call, which takes a
        third of the time of single page faults. Returns the end of the loaded bytes, possibly
        beyond `end`."""
        wanted = min(max(end, start + TOUCH_BYTES), self._reserved)
        if wanted > self._touched:
            start -= start % mmap.PAGESIZE
            if wanted > start and sys.platform == "linux":
                with contextlib.suppress(OSError):  # an older kernel: the copy faults them in
                    self.map.madvise(POPULATE_WRITE, start, wanted - start)
            self._touched = max(self._touched, wanted)
        return wanted

    def touch_ahead(self, position: int) -> None:
        """Reserve and load the pages after `position`. May run in another thread than the writer.
        Errors are ignored, because the writer will report them. No-op if the file is closed or
        truncated."""
        end = min(position + AHEAD_BYTES, self.size)
        with self._closing, contextlib.suppress(TieredStoreError):
            begin = max(self._touched, position)
            if self._map is None or begin >= end or sys.platform != "linux":
                return
            self.check_length()
            end = min(self.reserve(end), end)
            populate(self._map, begin - begin % mmap.PAGESIZE, end)
            self._touched = max(self._touched, end)

    def sync(self) -> None:
        """Flush the written bytes to disk. (`mmap.flush` would hold the GIL.) Raises Corrupt like
        `check`, and Unavailable if the sync fails."""
        self.check()
        with wrap_os_errors("sync", self.path, is_sync=True):
            sync_file(self.fd)

    def close(self) -> None:
        """Close the file descriptor and the mapping. The mapping is removed when its last view is
        released. Idempotent."""
        with self._closing:
            self._close()

    def _close(self) -> None:
        self._view = None
        if self._map is not None:
            if self._is_locked:
                unlock_memory(self._map)
                self._is_locked = False
            with contextlib.suppress(BufferError):  # a view still exists
                self._map.close()
            self._map = None  # its guard goes with it
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
