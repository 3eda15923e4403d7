"""Commit log of an owned store: files, end, reads and appends.

Records are consecutive (`docs/formats/record.md`). If a record does not fit into the rest of a
file, a blank record fills the rest and the record begins the next file. Positions are bytes of the
log: min_offset ≤ flushed_offset ≤ readable_offset ≤ max_offset.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol

import numpy as np

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Busy, Corrupt, Invalid, TieredStoreError
from tieredstore.local.log.gathering import Runs
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.log.mapped_file_queue import MappedFileQueue
from tieredstore.local.log.transient_pool import TransientStorePool, WriteBuffers
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.layout import BLANK_SIZE
from tieredstore.message.record import blank_record
from tieredstore.service_thread import ServiceHealth

COMMIT_LOG_DIRECTORY: Final = "commitlog"
PAGE_BYTES: Final = 4096
FILES_AHEAD: Final = 2
"""Number of files that are created ahead, as in Java."""
_WIPE_BYTES: Final = 1 << 20


def find_log_directory(config: StoreConfig, root: Path) -> Path:
    """Return the folder of a store's commit log: `storePathCommitLog` or the default in the store's
    root."""
    path = config.store_path_commit_log
    return Path(path) if path else root / COMMIT_LOG_DIRECTORY


class CommitLogReader(Protocol):
    """Commit log of this or another process, for reads of messages. Offsets are bytes."""

    @property
    def file_size(self) -> int: ...

    @property
    def min_offset(self) -> int:
        """First available byte."""

    @property
    def readable_offset(self) -> int:
        """End of the readable bytes."""

    @property
    def confirm_offset(self) -> int:
        """End of the bytes that may be dispatched."""

    @property
    def flushed_offset(self) -> int:
        """End of the bytes that are known to be on disk."""

    def get(self, offset: int, size: int) -> memoryview | None:
        """Return the given bytes, or None unless all of them are within [min_offset,
        readable_offset) and in one file."""

    def gather(self, runs: Runs) -> bytearray | None:
        """Copy several byte ranges of one file into one buffer, owned by the caller. Returns None
        unless all ranges are within [min_offset, readable_offset)."""

    def is_resident(self, offset: int, size: int) -> bool:
        """Return whether the given bytes are in the page cache. Returns False if the log does not
        have them."""


class CommitLog:
    """Commit log with one writer (the holder of the store's put lock) and any number of readers.

    `max_offset`: end of the appended bytes. `flushed_offset`: end of the synced bytes.
    `sync_flush`: whether only synced bytes may be dispatched (SYNC_FLUSH). `pool`: buffers for
    messages, which can be read only after `commit` has copied them to the files. Without a free
    buffer, a file is written directly, or not at all if `fail_without_buffer` is set.

    `warm_up_flush_pages`: called for each new file. Unless it returns 0, all pages of the file are
    prepared in advance. With SYNC_FLUSH, the result is the number of pages between two syncs.
    `on_damage`: called once, with the reason, when appends stop because another process has changed
    a file.
    """

    __slots__ = (  # known to the compiled core
        "__dict__",
        "__weakref__",
        "limit",
        "max_offset",
        "view",
        "view_from",
    )

    def __init__(
        self,
        directory: Path,
        file_size: int,
        open_files: PositionalFiles,
        *,
        sync_flush: bool = False,
        pool: TransientStorePool | None = None,
        fail_without_buffer: Callable[[], bool] = lambda: False,
        warm_up_flush_pages: Callable[[], int] = lambda: 0,
    ) -> None:
        self.file_size = file_size
        self.max_offset = 0
        self.flushed_offset = 0
        self.on_damage: Callable[[TieredStoreError], object] = lambda _: None
        self.closed_reason: str | None = None  # why nothing can be appended
        # For the writer: its file, and the limit of a record's end before `make_room` is required.
        # The limit is 0 once the file was truncated by another process, so the writer calls
        # `refuse_written` after it has written.
        self.view = memoryview(b"")
        self.view_from = 0
        self.limit = 0
        self._sync_flush = sync_flush
        self._buffers = None if pool is None else WriteBuffers(pool, fail_without_buffer)
        self._warm_up_flush_pages = warm_up_flush_pages
        self._committed_offset = 0
        self._commit_lock = threading.Lock()
        log = weakref.ref(self)

        def leave_short_way() -> None:
            here = log()
            if here is not None:
                here.limit = 0

        self._on_fault = leave_short_way
        self._files = MappedFileQueue(directory, file_size, open_files, self._prepare)

    def make_directory(self) -> None:
        """Create the folder of a new store durably. Raises Invalid or Unavailable."""
        directory = self._files.directory
        try:
            FILES.make_directory(directory)
        except (FileExistsError, NotADirectoryError):
            path = str(directory)
            raise Invalid(f"{path}: expected a folder, found a file", path=path) from None
        except OSError as error:
            raise translate_os_error(error, "make the folder", directory) from error

    def load(self) -> None:
        """Find the files of the log. Call `set_tail` afterwards to set its end. Raises Corrupt or
        Invalid for files that do not match the configuration."""
        self._files.load()
        self.max_offset = self.flushed_offset = self._files.end_offset
        self._committed_offset = self.max_offset

    def start(self) -> None:
        """Start creating the next files in the background."""
        if self._buffers is not None:
            self._buffers.make_ahead()
        self._files.allocation.start()

    def health(self) -> ServiceHealth:
        """Return the health of the thread that creates files."""
        return self._files.allocation.health()

    @property
    def min_offset(self) -> int:
        return self._files.min_offset

    @property
    def readable_offset(self) -> int:
        return self.max_offset if self._buffers is None else self._committed_offset

    @property
    def confirm_offset(self) -> int:
        return self.flushed_offset if self._sync_flush else self.readable_offset

    @property
    def is_empty(self) -> bool:
        """Whether the log has no files."""
        return self._files.is_empty

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that contains the byte at `offset`."""
        return self._files.path_of(offset)

    def list_paths(self) -> list[Path]:
        """Return the paths of the files, oldest first, without files created ahead."""
        return self._files.list_paths()

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """Mapped files: the file being written, and files that wait for a flush."""
        return self._files.mapped

    # Reading

    def get(self, offset: int, size: int) -> memoryview | None:
        end = self.readable_offset
        if size < 0 or offset < self._files.min_offset or offset + size > end or offset >= end:
            return None
        if offset % self.file_size + size > self.file_size:
            return None
        data = self._files.read(offset, size)
        return None if data is None else memoryview(data)

    def gather(self, runs: Runs) -> bytearray | None:
        if runs.begin < self._files.min_offset or runs.end > self.readable_offset:
            return None
        if runs.begin // self.file_size != (runs.end - 1) // self.file_size:
            return None
        return self._files.gather(runs)

    def is_resident(self, offset: int, size: int) -> bool:
        if not self.min_offset <= offset <= self.readable_offset - size:
            return False
        return self._files.is_resident(offset, size)

    def rest_of_file(self, offset: int) -> memoryview:
        """Return all readable bytes from `offset` to the end of its file. Raises Unavailable, or
        Corrupt for a truncated file."""
        size = min(self.file_size - offset % self.file_size, self.readable_offset - offset)
        if size <= 0 or offset < self.min_offset:
            return memoryview(b"")
        inside = offset % self.file_size
        return self._files.map_for_reading(offset)[inside : inside + size]

    # Appending

    def set_tail(self, offset: int) -> None:
        """End the log at `offset`. Bytes after the end are zeroed, and bytes before it count as
        flushed. Raises Corrupt or Unavailable."""
        self._files.check_walks()
        self._files.truncate(offset)
        if self._files.is_empty:
            self._files.begin_at(offset)
        elif offset < self._files.end_offset:
            self._wipe(offset)
        self.max_offset = self.flushed_offset = self._committed_offset = offset

    def _wipe(self, offset: int) -> None:
        """Zero the last file from `offset` on, so that no old bytes look like a later record. Only
        parts that are not zero are overwritten, so a sparse file stays sparse."""
        file = self._files.open_last(offset)
        inside = offset - file.from_offset
        if not any(file.view[inside : inside + 8]):
            return
        for begin in range(inside, file.size, _WIPE_BYTES):
            piece = file.view[begin : begin + _WIPE_BYTES]
            if np.frombuffer(piece, np.uint8).any():
                piece[:] = bytes(len(piece))
        file.sync()

    def refuse_written(self, end: int) -> None:
        """Raise Corrupt if bytes just written to `view`, up to the log offset `end`, are lost. This
        happens if another process truncated the file, which sets `limit` to 0."""
        if end > self.limit:
            self._fail(self._files.open_last(self.max_offset).make_fault_error())

    def make_room(self, size: int) -> int:
        """Return the position for the next `size` bytes: `max_offset` or the beginning of the next
        file. `view` then has room for these bytes. Raises Busy if the log is closed for writing,
        and Exhausted or Unavailable if there is no room now. Raises Corrupt if another process
        changed a file, and Invalid if no file is large enough."""
        if self.closed_reason is not None:
            raise Busy(self.closed_reason)
        if size + BLANK_SIZE > self.file_size:
            raise Invalid(
                f"message of {size} bytes: expected at most {self.file_size - BLANK_SIZE}, which "
                "is what a commit log file takes"
            )
        try:
            return self._make_room(size)
        except Corrupt as error:
            self._fail(error)

    def _fail(self, error: Corrupt) -> NoReturn:
        self.limit = 0
        self.on_damage(error)
        raise error

    def _make_room(self, size: int) -> int:
        file = self._open_last()
        room = file.from_offset + file.size - self.max_offset
        if size + BLANK_SIZE > room:
            self._end_file(file, room)
            self.max_offset += room
            file = self._open_last()
        position = self.max_offset
        inside = position - file.from_offset
        reserved = file.reserve(inside + size)
        buffer = None if self._buffers is None else self._buffers.take(file)
        # The limit comes last: after an error or a signal in between, the former file's limit
        # refuses bytes outside that file.
        if buffer is not None:
            self.view, self.view_from = memoryview(buffer), file.from_offset
            self.limit = file.from_offset + min(reserved, file.size - BLANK_SIZE)
            return position
        touched = file.touch(inside, inside + size)
        goes_on = self.view_from == file.from_offset and bool(self.view)
        # Not for the first messages of a file, and not if each sync would write all of it to disk.
        if goes_on and touched < file.size and not self._sync_flush:
            self._files.allocation.touch_ahead(file, touched)
        self.view, self.view_from = file.view, file.from_offset
        # Without fault reports of the mapping, each put checks the length of the file.
        end = touched if file.is_guarded else inside + size
        self.limit = file.from_offset + min(end, file.size - BLANK_SIZE)
        if file.fault.is_noted:  # since then
            raise file.make_fault_error()
        return position

    def _end_file(self, file: MappedFile, room: int) -> None:
        inside = self.max_offset - file.from_offset
        file.reserve(inside + BLANK_SIZE)
        buffer = None if self._buffers is None else self._buffers.take(file)
        if buffer is None:
            file.view[inside : inside + BLANK_SIZE] = blank_record(room)
        else:  # which may have old content there
            buffer[inside : inside + room] = blank_record(room).ljust(room, b"\0")

    def _open_last(self) -> MappedFile:
        """Return the file that contains `max_offset`, creating it if needed, and request the next
        files."""
        file = self._files.open_last(self.max_offset)
        file.fault.on_fault = self._on_fault
        file.check()
        for number in range(1, FILES_AHEAD + 1):
            self._files.allocation.request(file.from_offset + number * file.size)
        return file

    def _prepare(self, file: MappedFile) -> None:
        pages = self._warm_up_flush_pages()
        if pages:
            file.warm_up(pages * mmap.PAGESIZE if self._sync_flush else None)
        elif self._buffers is None:
            file.touch(0, 1)
        if self._buffers is not None:
            self._buffers.make_ahead()

    # Changes of the files by other threads

    def commit(self, least_pages: int = 0) -> bool:
        """Copy messages from buffers of the pool to the files, which makes them readable. Returns
        whether any were copied. `least_pages`: do nothing for fewer pages of 4,096 bytes, unless a
        file is full. Raises Unavailable, Corrupt, and Exhausted if the disk is full. A later call
        then continues."""
        with self._commit_lock:
            begin, end = self._committed_offset, self.max_offset
            pages = end // PAGE_BYTES - begin // PAGE_BYTES
            is_full = begin // self.file_size < end // self.file_size
            if self._buffers is None or begin >= end or (pages < least_pages and not is_full):
                return False
            try:
                while begin < end:
                    begin = self._commit_file(self._buffers, begin, end)
            except Corrupt as error:
                self._fail(error)
            return True

    def _commit_file(self, buffers: WriteBuffers, begin: int, end: int) -> int:
        """Copy the part of [begin, end) in the first file. Returns the position of the rest."""
        from_offset = begin - begin % self.file_size
        end = min(end, from_offset + self.file_size)
        buffer = buffers.find(from_offset)
        if buffer is not None:
            with memoryview(buffer) as view:
                data = view[begin - from_offset : end - from_offset]
                self._files.open_last(begin).write(begin - from_offset, data)
                data.release()
        self._committed_offset = end
        if end == from_offset + self.file_size:
            buffers.give_back(from_offset)
        return end

    def sync(self) -> int:
        """Sync the appended bytes and return the new `flushed_offset`. Only one thread at a time
        may call this. Raises Exhausted like `commit`, Unavailable, and Corrupt if another process
        changed a file. After an error, `flushed_offset` is unchanged."""
        self.commit()
        end = self.readable_offset
        self._files.sync(max(self.flushed_offset, self.min_offset), end)
        self.flushed_offset = end
        return end

    def delete_files_before(self, offset: int) -> list[Path]:
        """Delete the files that end at or before `offset`, oldest first, and return their paths.
        The last file and unflushed files are kept. Reads in progress can finish. Raises Unavailable
        or Invalid if a file cannot be deleted. That file stays."""
        return self._files.delete_before(min(offset, self.flushed_offset, self.max_offset - 1))

    def close(self) -> None:
        """Close the mappings, and delete files that were created ahead."""
        self.view, self.limit = memoryview(b""), 0
        if self._buffers is not None:
            self._buffers.close()
        self._files.close()
