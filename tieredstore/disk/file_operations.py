"""File operations by path, in an object that crash tests replace."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tieredstore.disk.sync import sync_folder

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


Stamp = tuple[int, int, int, int]
"""Inode, time of the last change (ns), size (bytes), and when any of it was set (ns): another one
once a file, or what is in a folder, was changed, also by a copy that keeps the times of files."""


def make_stamp(found: os.stat_result) -> Stamp:
    """Make the stamp of what the system told of a file or folder."""
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class AppendFile(Protocol):
    """A file that only grows."""

    def write(self, data: bytes) -> None: ...

    def sync(self) -> None:
        """Put what was written on stable storage."""
        ...

    def close(self) -> None: ...


class FileOperations:
    """All methods raise OSError as the system does."""

    def size(self, path: Path) -> int | None:
        """Return the size in bytes; None when the file is not there."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def stamp(self, path: Path) -> Stamp | None:
        """Find the stamp of a file; None when it is not there."""
        try:
            return make_stamp(path.stat())
        except FileNotFoundError:
            return None

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_synced(self, path: Path, data: bytes) -> None:
        """Make or empty the file, write, and put the bytes on stable storage."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write `data` under the name: when this returns the file on disk is the new version, after
        a crash or an error the old or the new one, whole."""
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            self.write_synced(temporary, data)
            self.rename(temporary, path)
        except OSError as error:
            error.filename, error.filename2 = str(path), None  # a write names no file by itself
            with suppress(OSError):
                self.unlink(temporary)
            raise
        self.sync_directory(path.parent)

    def open_append(self, path: Path, *, empty: bool) -> AppendFile:
        """Make the file if it is not there; `empty` drops what it holds."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if empty else 0)
        return _Appender(os.open(path, flags, 0o644))

    def rename(self, path: Path, new_path: Path) -> None:
        path.replace(new_path)

    def link(self, path: Path, new_path: Path) -> bool:
        """Give a file a second name; False where the file system has none."""
        try:
            new_path.hardlink_to(path)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        return True

    def unlink(self, path: Path) -> None:
        """Delete a file. Idempotent."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """Make a folder with its parents, durably. Idempotent."""
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def sync_directory(self, path: Path) -> None:
        sync_folder(path)


class _Appender:
    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def write(self, data: bytes) -> None:
        assert self._fd is not None
        _write_all(self._fd, data)

    def sync(self) -> None:
        assert self._fd is not None
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


FILES = FileOperations()
"""The operations of the system, for all that no crash test replaces."""
