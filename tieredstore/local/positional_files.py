"""Positional reads and writes by path, for consume queues and index files."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from tieredstore.disk.at_hand import pread_at_hand
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.open_files import MAX_OPEN_FILES, OpenFiles
from tieredstore.disk.sync import open_folder, sync_file
from tieredstore.errors import Corrupt

REMOVED_SUFFIX = ".removed"
_PAGE_BYTES = 4096


class PositionalFiles:
    """Reads and writes by path, using one set of open files. Thread-safe. Raises Unavailable or
    Invalid for system errors. `writable`: whether files are also opened for writing. Must be False
    for a store of another process. `max_open_files`: maximum number of open file descriptors."""

    def __init__(self, *, writable: bool, max_open_files: int = MAX_OPEN_FILES) -> None:
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self.open_files = OpenFiles(max_open_files)

    def size(self, path: str) -> int:
        """Return the current length of the file (bytes)."""
        try:
            with self.open_files.take(path, self._flags) as fd:
                return os.fstat(fd).st_size
        except OSError as error:
            raise translate_os_error(error, "stat", path) from error

    def read_up_to(self, path: str, length: int, position: int) -> bytes:
        """Read `length` bytes from `position` on, or fewer at the end of the file."""
        try:
            with self.open_files.take(path, self._flags) as fd:
                data = pread_at_hand(fd, length, position)
                if len(data) == length or not data:
                    return data
                parts, got = [data], len(data)
                while got < length:
                    data = os.pread(fd, length - got, position + got)
                    if not data:
                        break
                    parts.append(data)
                    got += len(data)
        except OSError as error:
            action = f"read {length} bytes at {position}"
            raise translate_os_error(error, action, path, offset=position) from error
        return b"".join(parts)

    def read(self, path: str, length: int, position: int) -> bytes:
        """Read exactly `length` bytes. Raises Corrupt if the file is too short."""
        data = self.read_up_to(path, length, position)
        if len(data) != length:
            raise Corrupt(
                f"{path}: expected {length} bytes at {position}, found {len(data)}",
                path=path,
                offset=position,
            )
        return data

    def is_resident(self, path: str, position: int, length: int) -> bool:
        """Return whether these bytes are in the page cache. Returns True if the system cannot
        tell."""
        flags = getattr(os, "RWF_NOWAIT", None)
        if flags is None:
            return True
        byte = bytearray(1)
        first = position - position % _PAGE_BYTES
        try:
            with self.open_files.take(path, self._flags) as fd:
                for page in range(first, position + length, _PAGE_BYTES):
                    if os.preadv(fd, [byte], max(page, position), flags) == 0:
                        return False
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return True
            raise translate_os_error(error, f"read at {position}", path) from error
        return True

    def skip_hole(self, path: str, position: int) -> int:
        """Return the first position at or after `position` that may be outside a hole of a sparse
        file, or the file's size. Returns `position` if the system cannot report holes."""
        return self._seek(path, position, getattr(os, "SEEK_DATA", None), position)

    def skip_data(self, path: str, position: int) -> int:
        """Return the first position at or after `position` that is in a hole of a sparse file.
        Returns the file's size if there is no hole, or if the system cannot report holes."""
        return self._seek(path, position, getattr(os, "SEEK_HOLE", None), None)

    def _seek(self, path: str, position: int, whence: int | None, unknown: int | None) -> int:
        try:
            with self.open_files.take(path, self._flags) as fd:
                if whence is None:
                    return os.fstat(fd).st_size if unknown is None else unknown
                try:
                    return os.lseek(fd, position, whence)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # a hole up to the end
                        return os.fstat(fd).st_size
                    if error.errno == errno.EINVAL:
                        return os.fstat(fd).st_size if unknown is None else unknown
                    raise
        except OSError as error:
            raise translate_os_error(error, f"seek from {position}", path) from error

    def write(self, path: str, data: bytes, position: int) -> None:
        """Write all of `data` at `position`."""
        try:
            with self.open_files.take(path, self._flags) as fd:
                written = os.pwrite(fd, data, position)
                while written < len(data):
                    written += os.pwrite(fd, data[written:], position + written)
        except OSError as error:
            action = f"write {len(data)} bytes at {position}"
            raise translate_os_error(error, action, path, offset=position) from error

    def create(self, path: str, size_bytes: int) -> None:
        """Create a new file of zeros. Raises Unavailable, for example if it exists."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, size_bytes)
            except BaseException:
                os.unlink(path)  # noqa: PTH108 - text, as everywhere here
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise translate_os_error(error, "create", path) from error
        self.open_files.forget(path)  # another process may have deleted a file of that name

    def sync(self, path: str, size: int | None = None) -> None:
        """Flush the file's data to disk. `size`: expected file size in bytes. Raises Exhausted if
        the file cannot be opened now, and Corrupt if another process truncated, deleted or replaced
        it."""
        try:
            file = self.open_files.take(path, self._flags)
        except OSError as error:
            raise translate_os_error(error, "open", path) from error
        with file as fd:
            try:
                sync_file(fd)
            except OSError as error:
                raise translate_os_error(error, "sync", path, is_sync=True) from error
            if size is None:
                return
            status = os.fstat(fd)
            if status.st_size != size or not status.st_nlink:
                found = f"{status.st_size} bytes" if status.st_nlink else "that it was deleted"
                raise Corrupt(
                    f"{path}: expected a file of {size} bytes, found {found}: it was changed "
                    "underneath",
                    path=path,
                )

    def delete(self, path: str | Path) -> None:
        """Delete a file and close its descriptor. No-op if the file does not exist."""
        try:
            self.open_files.delete(str(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise translate_os_error(error, "delete", path) from error

    def sync_folder(self, path: str | Path) -> None:
        """Flush creations and deletions in a folder to disk. No-op if the folder does not exist.
        Raises Exhausted if it cannot be opened now."""
        try:
            fd = open_folder(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_os_error(error, "open the folder", path) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise translate_os_error(error, "sync the folder", path, is_sync=True) from error
        finally:
            os.close(fd)

    def delete_folder(self, folder: Path) -> None:
        """Delete a folder of files durably, and its parent if that becomes empty. After a crash,
        the folder is complete or gone (remains have REMOVED_SUFFIX in their name). No-op if the
        folder does not exist."""
        removed = folder.with_name(folder.name + REMOVED_SUFFIX)
        try:
            self.delete_removed_folder(removed)
            if folder.is_dir():
                names = os.listdir(folder)  # noqa: PTH208 - the seam is the os module's own call
                folder.rename(removed)
                for name in names:
                    self.open_files.forget(str(folder / name))
                self.sync_folder(folder.parent)
                self.delete_removed_folder(removed)
            with contextlib.suppress(OSError):  # while it has other entries
                folder.parent.rmdir()
        except OSError as error:
            raise translate_os_error(error, "delete", folder) from error

    def delete_removed_folder(self, removed: Path) -> None:
        """Delete the remains of an interrupted `delete_folder`, if there are any."""
        try:
            if removed.is_dir():
                for path in removed.iterdir():
                    path.unlink()
                removed.rmdir()
        except OSError as error:
            raise translate_os_error(error, "delete", removed) from error

    def close(self) -> None:
        """Close all files. Later calls reopen them."""
        self.open_files.forget_all()
