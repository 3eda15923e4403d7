"""File operations by path, as methods of an object that crash tests can replace."""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import sync_folder

SECRET_FILE_MODE: Final = 0o600
SECRET_FOLDER_MODE: Final = 0o700
"""Mode of a new folder for secrets. An existing folder keeps its mode."""
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o777
_SECRET_NAMES: Final = ("authUsers.json", "authAcls.json", "plain_acl.yml", "acl/")


def find_file_mode(name: str) -> int:
    """Return the mode for a new file of `config/`, or of a copy of it (`.bak`, `.damaged-…`),
    before the umask is applied."""
    return SECRET_FILE_MODE if name.startswith(_SECRET_NAMES) else _FILE_MODE


def find_folder_mode(path: Path) -> int:
    """Return the mode for a new folder, before the umask is applied. Other users get no access to
    `config/`, because it may contain passwords."""
    return SECRET_FOLDER_MODE if path.name == "config" else _FOLDER_MODE


def close_secret_file(path: Path) -> None:
    """Remove other users' permissions from a file with secrets, if this process may do so. An older
    version of this program may have restored the file with such permissions."""
    if find_file_mode(path.name) != SECRET_FILE_MODE:
        return
    with suppress(FileNotFoundError):
        try:
            mode = path.stat().st_mode & 0o777
            if mode & ~SECRET_FILE_MODE:
                path.chmod(mode & SECRET_FILE_MODE)
        except PermissionError as error:
            import logging  # not needed by commands that only print help

            _log = logging.getLogger(__name__)
            _log.warning("%s: others may read the secrets in it: %s", path, error)


def cut_zeros(data: bytes) -> bytes:
    """Return a text (JSON, JSON lines) without trailing zero bytes, which no valid text has."""
    return data.rstrip(b"\0")


def measure_used_ratio(path: Path) -> float:
    """Return the used share of a folder's file system, rounded up to whole percents, like Java's
    `UtilAll.getDiskPartitionSpaceUsedPercent`. Space reserved for the superuser counts as neither
    used nor free. Returns 0.0 if the file system reports no sizes. Raises Unavailable."""
    while not path.exists() and path != path.parent:
        path = path.parent  # the folder is created with its first file
    with wrap_os_errors("see how full the disk is", path):
        found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return -(-used * 100 // whole) / 100 if whole > 0 else 0.0


TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that is being written. No reader opens such a file."""
_MOST_NAME_BYTES: Final = 200
_LEFTOVER_AGE_S: Final = 86_400.0
_MOST_CLEANED: Final = 1_024
_CLEANED: Final[set[Path]] = set()
"""Files whose old temporary files were already removed."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


Stamp = tuple[int, int, int, int]
"""Stamp of a version of a file or folder: inode, modification time (ns), size (bytes) and change
time (ns). Any change of the file or folder changes the stamp. A copy has another stamp, even if it
preserves the times."""


def make_stamp(found: os.stat_result) -> Stamp:
    """Return the `Stamp` of a file or folder from its `stat` result."""
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class AppendFile(Protocol):
    """File that is only appended to."""

    def write(self, data: bytes) -> None: ...

    def sync(self) -> None:
        """Flush the written bytes to stable storage."""

    def close(self) -> None: ...


class FileOperations:
    """File operations. Like the system, all methods raise OSError."""

    def size(self, path: Path) -> int | None:
        """Return the size in bytes, or None if the file does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def stamp(self, path: Path) -> Stamp | None:
        """Return the `Stamp` of a file, or None if the file does not exist."""
        try:
            return make_stamp(path.stat())
        except FileNotFoundError:
            return None

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        """Create or empty the file, write `data`, and flush it to stable storage. `mode`: mode of a
        new file, before the umask is applied."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_temporary(self, path: Path, data: bytes, mode: int = 0o644) -> Path:
        """Write and sync `data` to a new file beside `path`, which the caller renames to `path`.
        Each call uses a unique name, so concurrent writers do not collide. `mode`: as for
        `write_synced`."""
        temporary = self.name_temporary(path)
        try:
            self.write_synced(temporary, data, mode)
        except BaseException:
            self.discard(temporary)
            raise
        return temporary

    def name_temporary(self, path: Path) -> Path:
        """Return a unique name for a temporary file beside `path`, which the caller renames to
        `path`. Also deletes old temporary files of killed writers."""
        self._remove_leftovers(path)
        return path.with_name(f"{_shorten(path)}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")

    def discard(self, temporary: Path) -> None:
        """Delete a temporary file if possible. Raises no error."""
        with suppress(OSError):
            self.unlink(temporary)

    def replace_file(
        self, path: Path, data: bytes, *, mode: int | None = None, backup: Path | None = None
    ) -> None:
        """Replace the content of a file with `data`, durably. After a crash or an error, the file
        has either the old or the new content. If there are several writers, the last rename wins.

        `mode`: mode of the file, before the umask is applied (default: the mode of the replaced
        file, or 0o644).
        `backup`: name under which the old version is kept. If there is no old version, the new one
        is also written to `backup`.
        """
        temporary: Path | None = None
        try:
            kept_mode = self._find_mode(path) if mode is None else None
            mode = mode or kept_mode or 0o644
            temporary = self.write_temporary(path, data, mode)
            if kept_mode is not None:
                temporary.chmod(kept_mode)
            if backup is not None:
                self.back_up(path, backup, data, mode)
            self.rename(temporary, path)
        except BaseException as error:
            if isinstance(error, OSError):  # the error of a write names no file
                error.filename, error.filename2 = str(path), None
            if temporary is not None:
                self.discard(temporary)
            raise
        self.sync_directory(path.parent)

    def back_up(self, path: Path, backup: Path, data: bytes, mode: int = 0o644) -> None:
        """Link a file to its backup name before the file is replaced. If the file is missing or
        empty and no backup exists, write `data`, its new content, to `backup`. `mode`: as for
        `write_synced`."""
        if not self.size(path):
            if not self.size(backup):
                self.rename(self.write_temporary(backup, data, mode), backup)
            return
        temporary = self.name_temporary(backup)
        try:
            if not self.link(path, temporary):
                self.write_synced(temporary, self.read(path), mode)
            self._narrow(temporary, mode)
            self.rename(temporary, backup)
        except BaseException:
            self.discard(temporary)
            raise

    def _narrow(self, path: Path, mode: int) -> None:
        """Remove the permissions of a file that are not in `mode`, so that other users cannot read
        the backup of a file with secrets."""
        found = self._find_mode(path)
        if found is not None and found & ~mode:
            path.chmod(found & mode)

    def _find_mode(self, path: Path) -> int | None:
        try:
            return path.stat().st_mode & 0o777
        except OSError:
            return None

    def _remove_leftovers(self, path: Path) -> None:
        """Delete temporary files of `path` that are older than a day, left behind by killed
        writers. Done once per path. A writer that still uses such a file gets an error."""
        if path in _CLEANED:
            return
        if len(_CLEANED) >= _MOST_CLEANED:
            _CLEANED.clear()
        _CLEANED.add(path)
        left = re.compile(
            rf"{re.escape(_shorten(path))}(\.[0-9a-f]{{16}})?{re.escape(TEMPORARY_SUFFIX)}"
        )
        oldest = time.time() - _LEFTOVER_AGE_S
        with suppress(OSError), os.scandir(path.parent) as entries:
            for entry in entries:
                if left.fullmatch(entry.name) and entry.stat().st_mtime < oldest:
                    self.unlink(path.with_name(entry.name))

    def open_append(self, path: Path, *, empty: bool) -> AppendFile:
        """Open a file for appending, creating it if needed. `empty`: whether to truncate it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if empty else 0)
        return _Appender(os.open(path, flags, 0o644))

    def rename(self, path: Path, new_path: Path) -> None:
        path.replace(new_path)

    def link(self, path: Path, new_path: Path) -> bool:
        """Create a hard link to a file. Returns False if the file system has no hard links."""
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

    def make_directory(self, path: Path, mode: int | None = None) -> None:
        """Create a folder and its parents, durably. Idempotent. `mode`: mode of the folder itself
        if it is created, before the umask is applied (default: `find_folder_mode`)."""
        last = path
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            given = mode if directory == last else None
            directory.mkdir(given or find_folder_mode(directory), exist_ok=True)
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


def _shorten(path: Path) -> str:
    return os.fsdecode(os.fsencode(path.name)[:_MOST_NAME_BYTES])


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


FILES = FileOperations()
"""Direct file operations of the system, for callers whose operations crash tests need not
replace."""
