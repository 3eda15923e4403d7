"""The files of a commit log: one size each, no gap between them.

Which files there are is told by two numbers, so that a file is found by a division and readers take
no lock: `min_offset` is moved by the deletion of old files alone, `end_offset` by the writer alone.
Mapped are the files that the writer fills, until they are full and flushed. What is read of them is
copied from the mapping, what is read of the others by position, which lets other threads run while
the disk works. So no reader holds a mapping: a file that is deleted while it is read stays readable
by the descriptor in use, and one that was cut off or replaced underneath is an error, no signal.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.guarded_mapping import guard
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.local.log.allocation import AllocateMappedFileService
from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.log.gathering import Runs, gather_runs
from tieredstore.local.log.mapped_file import MappedFile, MappingFault
from tieredstore.local.positional_files import PositionalFiles

_log = logging.getLogger(__name__)


class MappedFileQueue:
    """One writer, one thread that syncs, one that deletes, any number of readers.

    file_size: bytes; offsets are bytes of the log. prepare: called with each new file before the
    writer gets it.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        open_files: PositionalFiles,
        prepare: Callable[[MappedFile], object] = lambda _: None,
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.min_offset = 0
        self.end_offset = 0
        self.allocation = AllocateMappedFileService(self._create)
        self.mapped: tuple[MappedFile, ...] = ()
        """The files that are mapped, oldest first; swapped whole."""
        self._open_files = open_files
        self._read_faults: dict[int, MappingFault] = {}
        self._prepare = prepare
        self._swap_lock = threading.Lock()  # of `mapped`, for an instant
        self._close_lock = threading.Lock()  # held by whoever syncs or closes mapped files

    def begin_at(self, offset: int) -> None:
        """Let the first file of an empty log be the one of an offset."""
        self.min_offset = self.end_offset = offset - offset % self.file_size

    @property
    def is_empty(self) -> bool:
        """Whether there is no file at all."""
        return self.end_offset == self.min_offset

    def load(self) -> None:
        """Find the files. Raises Corrupt or Invalid for files that are not as expected."""
        run = list_files(self.directory, file_size=self.file_size, delete_empty_last=True)
        self.min_offset, self.end_offset = run.start, run.end

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that holds (or would hold) a byte."""
        return self.directory / file_name(offset - offset % self.file_size)

    def _create(self, from_offset: int) -> MappedFile:
        self._delete_leftover(self.path_of(from_offset))
        file = MappedFile.create(self.path_of(from_offset), from_offset, self.file_size)
        try:
            self._prepare(file)
        except BaseException:
            file.close()
            self._delete(file.path)
            raise
        return file

    def _delete_leftover(self, path: Path) -> None:
        """Delete what an attempt left that could not be cleaned up: a file without a message."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # mostly: there is none
            return
        try:
            is_unused = not any(os.pread(fd, 8, 0))
        finally:
            os.close(fd)
        if is_unused:
            self._delete(path)

    def list_paths(self) -> list[Path]:
        """List the paths of the files that there are, oldest first."""
        return [
            self.path_of(begin) for begin in range(self.min_offset, self.end_offset, self.file_size)
        ]

    # Reading

    def read(self, offset: int, size: int) -> bytes | None:
        """Read bytes that lie in one file; None when it was deleted meanwhile. Raises Corrupt for a
        file that was cut off or taken away by others, Unavailable."""
        inside = offset % self.file_size
        begin = offset - inside
        for file in self.mapped:
            if file.from_offset == begin:
                data = file.copy(inside, inside + size)
                if data is not None:
                    return data
        path = f"{self.directory}/{begin:020d}"
        try:
            return self._open_files.read(path, size, inside)
        except TieredStoreError:
            if offset < self.min_offset:
                return None
            self._check_there(Path(path))
            raise

    def gather(self, runs: Runs) -> bytearray | None:
        """Copy runs of one file, one behind the other; None when it was deleted meanwhile. Raises
        what `read` raises."""
        begin = runs.begin - runs.begin % self.file_size
        for file in self.mapped:
            if file.from_offset == begin:
                data = file.gather(runs)
                if data is not None:
                    return data
        return gather_runs(runs.list_spans(), self.read)

    def _check_there(self, path: Path) -> None:
        if not path.exists():
            raise Corrupt(
                f"{path}: expected a commit log file, found none: it was taken away underneath",
                path=str(path),
            )

    def is_resident(self, offset: int, size: int) -> bool:
        """Tell whether bytes of one file are in the page cache."""
        path = str(self.path_of(offset))
        return self._open_files.is_resident(path, offset % self.file_size, size)

    def map_for_reading(self, offset: int) -> memoryview:
        """Map the file of an offset, for a walk through it; the mapping goes with the last view.
        Raises Corrupt when the file does not have its size, Unavailable."""
        path = self.path_of(offset)
        try:
            with self._open_files.open_files.take(str(path), os.O_RDWR) as fd:
                length = os.fstat(fd).st_size
                if length != self.file_size:
                    raise Corrupt(
                        f"{path}: expected {self.file_size} bytes, found {length}", path=str(path)
                    )
                mapping = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
        except OSError as error:
            raise translate_os_error(error, "map", path) from error
        self.check_walks()
        fault = self._read_faults.setdefault(offset - offset % length, MappingFault())
        guard(mapping, fault.note)
        return memoryview(mapping)

    def check_walks(self) -> None:
        """Raise Corrupt when a file was cut off while it was mapped for reading: what was read of
        it is worth nothing."""
        for begin, fault in self._read_faults.items():
            if fault.is_noted:
                path = self.path_of(begin)
                raise Corrupt(
                    f"{path}: it was changed underneath while it was read", path=str(path)
                )

    # Writing

    def open_last(self, offset: int) -> MappedFile:
        """Return the file that the byte at an offset is to be written to: one that is there, or the
        one behind the last. Raises what `AllocateMappedFileService.take` and `MappedFile` raise."""
        begin = offset - offset % self.file_size
        if begin < self.end_offset:
            for file in reversed(self.mapped):
                if file.from_offset == begin:
                    return file
            file = MappedFile(self.path_of(begin), begin, self.file_size)
            file.check()
            self._add(file)
            return file
        # An interrupt between any two of these lines loses nothing: the next call goes on.
        file = self.allocation.take(begin)
        self._add(file)
        self.end_offset = begin + self.file_size
        self.allocation.confirm(begin)
        return file

    def _add(self, file: MappedFile) -> None:
        with self._swap_lock:
            if file not in self.mapped:
                self.mapped = (*self.mapped, file)

    def sync(self, begin: int, end: int) -> None:
        """Sync the bytes [begin, end); files that are full and synced are no longer mapped
        afterwards. Raises Unavailable, Corrupt for a file that was cut off or replaced."""
        with self._close_lock:
            mapped = {file.from_offset: file for file in self.mapped}
            for offset in range(begin - begin % self.file_size, end, self.file_size):
                file = mapped.get(offset)
                if file is not None:
                    file.sync()
                else:
                    self._open_files.sync(str(self.path_of(offset)))
            self._unmap(0, end)

    def _unmap(self, begin: int, end: int) -> None:
        """Close the mapped files that lie in [begin, end)."""
        with self._swap_lock:
            done = [
                file
                for file in self.mapped
                if begin <= file.from_offset and file.from_offset + file.size <= end
            ]
            self.mapped = tuple(file for file in self.mapped if file not in done)
        for file in done:
            file.close()

    # Deleting

    def delete_before(self, offset: int) -> list[Path]:
        """Delete the files whose bytes all lie before an offset, oldest first, and return their
        paths. Readers that are at it finish. Raises Unavailable or Invalid; the file that could not
        be deleted stays then."""
        deleted = []
        while self.min_offset + self.file_size <= offset:
            begin, path = self.min_offset, self.path_of(self.min_offset)
            self.min_offset = begin + self.file_size
            try:
                self._delete(path)
            except BaseException:
                self.min_offset = begin
                raise
            deleted.append(path)
        return deleted

    def truncate(self, offset: int) -> None:
        """Delete the files that begin at or behind an offset, newest first, but for the first file
        of a log that begins there."""
        while self.end_offset > self.min_offset and self.end_offset - self.file_size >= max(
            offset, self.min_offset + 1
        ):
            begin = self.end_offset - self.file_size
            with self._close_lock:
                self._unmap(begin, self.end_offset)
            self._delete(self.path_of(begin))
            self.end_offset = begin

    def _delete(self, path: Path) -> None:
        """Delete a file for good: no crash leaves a gap between those that stay."""
        self._open_files.delete(path)
        try:
            FILES.sync_directory(path.parent)
        except OSError as error:
            raise translate_os_error(error, "sync the folder", path.parent, is_sync=True) from error

    def close(self) -> None:
        """End the making of files, delete those that were never used, and close the others."""
        left = self.allocation.stop()
        for begin, file in reversed(left.items()):  # the newest first: no gap in front of it
            if begin < self.end_offset:
                continue
            if file is not None:
                file.close()
            try:
                self._delete(self.path_of(begin))
            except TieredStoreError as error:
                _log.warning("a file that was made ahead stays: %s", error)
                break
        with self._close_lock:
            self._unmap(0, self.end_offset)
