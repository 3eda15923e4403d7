"""Files of a commit log, of equal size and without gaps.

Two numbers define the files, so a file is found by a division, and readers take no lock. Only the
deletion of old files changes `min_offset`, and only the writer changes `end_offset`.

A file is mapped from its first write until it is full and flushed. Reads copy from the mappings,
and read other files by position, so that other threads can run during disk access. No reader holds
a mapping. A file that is deleted during a read stays readable through its open descriptor. A file
that another process truncated or replaced raises an error instead of SIGBUS.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.guarded_mapping import guard
from tieredstore.errors import Corrupt, Exhausted, TieredStoreError
from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.log.gathering import Runs, gather_runs
from tieredstore.local.log.mapped_file import MappedFile, MappingFault
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.service_thread import ServiceHealth, ServiceThread

_log = logging.getLogger(__name__)
WAIT_MS: Final = 5_000
"""Maximum time that a put waits for its file."""


class _Request:
    """Request to create one file. `done`: set once the file exists or an error occurred."""

    __slots__ = ("done", "error", "file", "from_offset")

    def __init__(self, from_offset: int) -> None:
        self.from_offset = from_offset
        self.done = threading.Event()
        self.file: MappedFile | None = None
        self.error: TieredStoreError | None = None


class AllocateMappedFileService:
    """Creates files with `create(from_offset)`, one at a time, in the order of their offsets.
    `request` requests a file that will be needed, and `take` waits for it. A failed creation is
    retried when the file is requested again. Before `start` and after `stop`, `take` creates the
    file itself. Thread-safe."""

    def __init__(self, create: Callable[[int], MappedFile], *, wait_ms: int = WAIT_MS) -> None:
        self._create = create
        self._wait_ms = wait_ms
        self._lock = threading.Lock()
        self._requests: dict[int, _Request] = {}
        self._writer: tuple[MappedFile, int] | None = None
        self._loop = ServiceThread(
            "allocate-mapped-file",
            self._make_files,
            None,
            on_error=lambda error: _log.warning("a commit log file was not made: %s", error),
        )

    def start(self) -> None:
        """Start creating files in the background."""
        self._loop.start()

    def stop(self) -> dict[int, MappedFile | None]:
        """Stop the thread. Returns the files that were not taken, in ascending order of offset. A
        file whose creation failed is None, and a part of it may be on disk."""
        self._loop.stop()
        with self._lock:
            requests, self._requests = self._requests, {}
        for request in requests.values():
            request.done.set()
        return {offset: request.file for offset, request in sorted(requests.items())}

    def health(self) -> ServiceHealth:
        """Return the health of the loop."""
        return self._loop.health()

    def request(self, from_offset: int) -> None:
        """Request a file, unless this was done before. Never blocks."""
        if self._loop.is_running:
            self._ask(from_offset)

    def touch_ahead(self, file: MappedFile, position: int) -> None:
        """Make the background thread load the pages after `position` in the writer's file. Never
        blocks. While that thread creates a file, the writer loads the pages itself."""
        if self._loop.is_running:
            self._writer = file, position
            self._loop.wake()

    def _ask(self, from_offset: int) -> _Request:
        with self._lock:
            request = self._requests.get(from_offset)
            if request is None or request.error is not None:
                request = self._requests[from_offset] = _Request(from_offset)
            if not request.done.is_set():
                self._loop.wake()
            return request

    def take(self, from_offset: int) -> MappedFile:
        """Wait for a file and return it. It stays available until `confirm`. Raises the error of
        the creation, and Exhausted on a timeout."""
        if not self._loop.is_running:
            return self._create(from_offset)
        request = self._ask(from_offset)
        request.done.wait(self._wait_ms / 1000)
        if request.error is not None:
            raise request.error
        if request.file is None:
            raise Exhausted(
                f"commit log file {from_offset:020d}: expected it within {self._wait_ms} ms: the "
                "disk is too slow",
                offset=from_offset,
            )
        return request.file

    def confirm(self, from_offset: int) -> None:
        """Remove a file from the requests. The caller of `take` now owns it."""
        with self._lock:
            self._requests.pop(from_offset, None)

    def _find_next(self) -> _Request | None:
        """Return the next file to create, or None. If the creation of the earliest file failed and
        was not requested again, raises its error. Later files must wait, because a crash would
        otherwise leave a gap."""
        with self._lock:
            missing = [it for it in self._requests.values() if it.file is None]
        first = min(missing, key=lambda it: it.from_offset, default=None)
        if first is not None and first.error is not None:
            raise first.error
        return first

    def _make_files(self) -> None:
        while not self._loop.is_stopping:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer[0].touch_ahead(writer[1])
            request = self._find_next()
            if request is None:
                return
            try:
                request.file = self._create(request.from_offset)
            except TieredStoreError as error:
                request.error = error
                raise
            except Exception as error:
                request.error = TieredStoreError(
                    f"commit log file {request.from_offset:020d}: {error!r}",
                    offset=request.from_offset,
                )
                raise
            finally:
                request.done.set()
            self._loop.report_progress()


class MappedFileQueue:
    """Queue of files with one writer, one thread that syncs, one that deletes, and any number of
    readers. `file_size`: bytes. Offsets are bytes of the log. `prepare`: called with each new file
    before the writer gets it."""

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
        """Mapped files, oldest first. A change replaces the whole tuple."""
        self._open_files = open_files
        self._read_faults: dict[int, MappingFault] = {}
        self._prepare = prepare
        self._swap_lock = threading.Lock()  # of `mapped`, for an instant
        self._close_lock = threading.Lock()  # held while mapped files are synced or closed

    def begin_at(self, offset: int) -> None:
        """Begin an empty log with the file that begins at `offset`."""
        self.min_offset = self.end_offset = offset - offset % self.file_size

    @property
    def is_empty(self) -> bool:
        """Whether the log has no files."""
        return self.end_offset == self.min_offset

    def load(self) -> None:
        """Find the files. Raises Corrupt or Invalid for unexpected files."""
        run = list_files(self.directory, file_size=self.file_size, delete_empty_last=True)
        self.min_offset, self.end_offset = run.start, run.end

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that contains the byte at `offset`."""
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
        """Delete a file without messages that a failed creation left behind."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # usually none exists
            return
        try:
            is_unused = not any(os.pread(fd, 8, 0))
        finally:
            os.close(fd)
        if is_unused:
            self._delete(path)

    def list_paths(self) -> list[Path]:
        """Return the paths of the existing files, oldest first."""
        return [
            self.path_of(begin) for begin in range(self.min_offset, self.end_offset, self.file_size)
        ]

    # Reading

    def read(self, offset: int, size: int) -> bytes | None:
        """Read bytes within one file. Returns None if the file has been deleted. Raises
        Unavailable, and Corrupt if another process truncated or removed the file."""
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
        """Copy runs of one file into one buffer, in order. Returns None if the file has been
        deleted. Raises the errors of `read`."""
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
        """Return whether bytes of one file are in the page cache."""
        path = str(self.path_of(offset))
        return self._open_files.is_resident(path, offset % self.file_size, size)

    def map_for_reading(self, offset: int) -> memoryview:
        """Map the file that begins at `offset` for a scan. The mapping is removed when its last
        view is released. Raises Unavailable, or Corrupt for a file of the wrong size."""
        path = self.path_of(offset)
        with (
            wrap_os_errors("map", path),
            self._open_files.open_files.take(str(path), os.O_RDWR) as fd,
        ):
            length = os.fstat(fd).st_size
            if length != self.file_size:
                raise Corrupt(
                    f"{path}: expected {self.file_size} bytes, found {length}", path=str(path)
                )
            mapping = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
        self.check_walks()
        fault = self._read_faults.setdefault(offset - offset % length, MappingFault())
        guard(mapping, fault.note)
        return memoryview(mapping)

    def check_walks(self) -> None:
        """Raise Corrupt if a file was truncated while it was mapped for reading. Bytes read from it
        are then invalid."""
        for begin, fault in self._read_faults.items():
            if fault.is_noted:
                path = self.path_of(begin)
                raise Corrupt(
                    f"{path}: it was changed underneath while it was read", path=str(path)
                )

    # Writing

    def open_last(self, offset: int) -> MappedFile:
        """Return the file that contains `offset`, or create it after the last file. Raises the
        errors of `AllocateMappedFileService.take` and `MappedFile`."""
        begin = offset - offset % self.file_size
        if begin < self.end_offset:
            for file in reversed(self.mapped):
                if file.from_offset == begin:
                    return file
            file = MappedFile(self.path_of(begin), begin, self.file_size)
            file.check()
            self._add(file)
            return file
        # An interrupt between any two of these lines loses nothing: the next call continues.
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
        """Sync the bytes [begin, end). Files that are full and synced are unmapped. Raises
        Unavailable, and Corrupt if another process truncated or replaced a file."""
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
        """Delete the files that end at or before `offset`, oldest first, and return their paths.
        Reads in progress can finish. Raises Unavailable or Invalid if a file cannot be deleted.
        That file stays."""
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
        """Delete the files that begin at or after `offset`, newest first, except the first file of
        the log."""
        while self.end_offset > self.min_offset and self.end_offset - self.file_size >= max(
            offset, self.min_offset + 1
        ):
            begin = self.end_offset - self.file_size
            with self._close_lock:
                self._unmap(begin, self.end_offset)
            self._delete(self.path_of(begin))
            self.end_offset = begin

    def _delete(self, path: Path) -> None:
        """Delete a file durably, so that a crash leaves no gap between the other files."""
        self._open_files.delete(path)
        with wrap_os_errors("sync the folder", path.parent, is_sync=True):
            FILES.sync_directory(path.parent)

    def close(self) -> None:
        """Stop creating files, delete files that were created ahead, and close all other files."""
        left = self.allocation.stop()
        for begin, file in reversed(left.items()):  # the newest first, so that there is no gap
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
