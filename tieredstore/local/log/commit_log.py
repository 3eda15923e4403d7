"""The commit log of a store that this process owns: files, tail, reads and the place to append.

Records lie one after the other (`docs/formats/record.md`); one that does not fit into the rest of a
file is preceded by a blank record and begins the next file. The positions, in bytes of the log:
min_offset ≤ flushed_offset ≤ readable_offset ≤ max_offset.
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
from tieredstore.local.log.transient_pool import TransientStorePool
from tieredstore.local.log.write_buffers import WriteBuffers
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.layout import BLANK_SIZE
from tieredstore.message.record import blank_record
from tieredstore.service_thread import ServiceHealth

COMMIT_LOG_DIRECTORY: Final = "commitlog"
PAGE_BYTES: Final = 4096
FILES_AHEAD: Final = 2
"""Files that are made before they are needed, as in Java."""
_WIPE_BYTES: Final = 1 << 20


def find_log_directory(config: StoreConfig, root: Path) -> Path:
    """Return the folder of a store's commit log: `storePathCommitLog`, or the one in its root."""
    path = config.store_path_commit_log
    return Path(path) if path else root / COMMIT_LOG_DIRECTORY


class CommitLogReader(Protocol):
    """What serving needs from a commit log, owned or foreign. Offsets are bytes."""

    @property
    def file_size(self) -> int: ...

    @property
    def min_offset(self) -> int:
        """First byte that is still there."""
        ...

    @property
    def readable_offset(self) -> int:
        """Behind the last byte that can be read."""
        ...

    @property
    def confirm_offset(self) -> int:
        """Behind the last byte that may be dispatched."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Behind the last byte that is known to be on disk."""
        ...

    def get(self, offset: int, size: int) -> memoryview | None:
        """Return these bytes; None when they are not all within [min_offset, readable_offset) and
        one file."""
        ...

    def gather(self, runs: Runs) -> bytearray | None:
        """Copy the bytes of runs of one file, one behind the other; None when they are not all
        within [min_offset, readable_offset). The buffer is the caller's own."""
        ...

    def is_resident(self, offset: int, size: int) -> bool:
        """Tell whether these bytes are in the page cache; False when the log does not have them."""
        ...


class CommitLog:
    """One writer (who holds the store's put lock), any number of readers.

    max_offset: behind the last byte that was appended; flushed_offset: behind the last one that a
    sync brought to disk. sync_flush: whether only what is on disk may be dispatched (SYNC_FLUSH).
    pool: buffers that messages are put into, and that `commit` copies to the files, which makes
    them readable; without a free one a file is written to directly, or, with fail_without_buffer,
    not at all. warm_up_flush_pages: asked at each new file: not 0 to make all its pages at once,
    with a sync after as many under SYNC_FLUSH.
    on_damage: told once why nothing may be appended ever again: a file was changed underneath.
    """

    __slots__ = (  # that the compiled core knows
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
        self.closed_reason: str | None = None  # why nothing may be appended
        # For the writer: the file that it writes to, and up to where a record may end in it before
        # `make_room` has to be asked. It is 0 once the file was cut off underneath, so the writer
        # asks `refuse_written` after it has written.
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
        """Make the folder of a new store, durably. Raises Invalid or Unavailable."""
        directory = self._files.directory
        try:
            FILES.make_directory(directory)
        except (FileExistsError, NotADirectoryError):
            path = str(directory)
            raise Invalid(f"{path}: expected a folder, found a file", path=path) from None
        except OSError as error:
            raise translate_os_error(error, "make the folder", directory) from error

    def load(self) -> None:
        """Find the files; `set_tail` says afterwards where the log ends. Raises Corrupt or Invalid
        for files that are not as the configuration says."""
        self._files.load()
        self.max_offset = self.flushed_offset = self._files.end_offset
        self._committed_offset = self.max_offset

    def start(self) -> None:
        """Begin to make the next files in the background."""
        if self._buffers is not None:
            self._buffers.make_ahead()
        self._files.allocation.start()

    def health(self) -> ServiceHealth:
        """Tell how the making of files is."""
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
        """Whether there is no file at all."""
        return self._files.is_empty

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that holds (or would hold) a byte."""
        return self._files.path_of(offset)

    def list_paths(self) -> list[Path]:
        """List the paths of the files, oldest first; of one that lies ready, no message has been
        put in it."""
        return self._files.list_paths()

    @property
    def mapped_files(self) -> Sequence[MappedFile]:
        """The files that are mapped now: the writer's, and those that wait for a flush."""
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
        """Return everything readable from an offset on, up to the end of its file. Raises Corrupt
        for a file that was cut off, Unavailable."""
        size = min(self.file_size - offset % self.file_size, self.readable_offset - offset)
        if size <= 0 or offset < self.min_offset:
            return memoryview(b"")
        inside = offset % self.file_size
        return self._files.map_for_reading(offset)[inside : inside + size]

    # Appending

    def set_tail(self, offset: int) -> None:
        """End the log here: what lies behind is no message and is wiped; what lies before counts as
        flushed. Raises Corrupt or Unavailable."""
        self._files.check_walks()
        self._files.truncate(offset)
        if self._files.is_empty:
            self._files.begin_at(offset)
        elif offset < self._files.end_offset:
            self._wipe(offset)
        self.max_offset = self.flushed_offset = self._committed_offset = offset

    def _wipe(self, offset: int) -> None:
        """Zero the last file from a position on, so that nothing stale can look like a later
        record, on disk too.

        In place, and only what is not zero yet: the file keeps its size at every moment, and what
        is sparse stays so.
        """
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
        """Raise Corrupt when bytes up to an offset, just written to `view`, went nowhere: the file
        was cut off underneath, and `limit` was set to 0 then."""
        if end > self.limit:
            self._fail(self._files.open_last(self.max_offset).make_fault_error())

    def make_room(self, size: int) -> int:
        """Return where the next `size` bytes go, at `max_offset` or at the beginning of the next
        file; `view` has room for them then. Raises Busy when the log is not written to any more,
        Exhausted or Unavailable when there is no room now, Corrupt when a file was changed
        underneath, and Invalid when no file is large enough."""
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
        # The limit comes last: where this ends before, by an error or a signal, that of the former
        # file refuses what is not that file's.
        if buffer is not None:
            self.view, self.view_from = memoryview(buffer), file.from_offset
            self.limit = file.from_offset + min(reserved, file.size - BLANK_SIZE)
            return position
        touched = file.touch(inside, inside + size)
        goes_on = self.view_from == file.from_offset and bool(self.view)
        # Not for the first messages of a file, nor where each sync would bring it all to disk.
        if goes_on and touched < file.size and not self._sync_flush:
            self._files.allocation.touch_ahead(file, touched)
        self.view, self.view_from = file.view, file.from_offset
        # Where no fault of the mapping is told, the length of the file is checked at each put.
        end = touched if file.is_guarded else inside + size
        self.limit = file.from_offset + min(end, file.size - BLANK_SIZE)
        if file.fault.is_noted:  # meanwhile
            raise file.make_fault_error()
        return position

    def _end_file(self, file: MappedFile, room: int) -> None:
        """Write the blank record that fills the rest of a file."""
        inside = self.max_offset - file.from_offset
        file.reserve(inside + BLANK_SIZE)
        buffer = None if self._buffers is None else self._buffers.take(file)
        if buffer is None:
            file.view[inside : inside + BLANK_SIZE] = blank_record(room)
        else:  # which may hold what another file had there
            buffer[inside : inside + room] = blank_record(room).ljust(room, b"\0")

    def _open_last(self) -> MappedFile:
        """The file into which `max_offset` falls, made if need be, and the next ones asked for."""
        file = self._files.open_last(self.max_offset)
        file.fault.on_fault = self._on_fault
        file.check()
        for number in range(1, FILES_AHEAD + 1):
            self._files.allocation.request(file.from_offset + number * file.size)
        return file

    def _prepare(self, file: MappedFile) -> None:
        """Have a new file ready for its first bytes."""
        pages = self._warm_up_flush_pages()
        if pages:
            file.warm_up(pages * mmap.PAGESIZE if self._sync_flush else None)
        elif self._buffers is None:
            file.touch(0, 1)
        if self._buffers is not None:
            self._buffers.make_ahead()

    # What others do with the files

    def commit(self, least_pages: int = 0) -> bool:
        """Copy what waits in buffers of the pool to the files, where it can be read; returns
        whether there was anything. least_pages: do nothing for fewer pages of 4,096 bytes, unless a
        file is full. Raises Exhausted when the disk is full (a later call goes on), Unavailable,
        Corrupt."""
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
        """Copy bytes [begin, end) as far as they are of one file; returns up to where."""
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
        """Bring what was appended so far to disk; returns the new `flushed_offset`. One thread at a
        time. Raises Exhausted as `commit`, Unavailable, Corrupt for a file that was changed
        underneath; then nothing moved."""
        self.commit()
        end = self.readable_offset
        self._files.sync(max(self.flushed_offset, self.min_offset), end)
        self.flushed_offset = end
        return end

    def delete_files_before(self, offset: int) -> list[Path]:
        """Delete the files that end at or before an offset, oldest first, and return their paths:
        never one that is not flushed, so never the last. Readers that are at it finish. Raises
        Unavailable or Invalid; the file that could not be deleted stays then."""
        return self._files.delete_before(min(offset, self.flushed_offset, self.max_offset - 1))

    def close(self) -> None:
        """Drop the mappings, and delete the files that were made ahead and not used."""
        self.view, self.limit = memoryview(b""), 0
        if self._buffers is not None:
            self._buffers.close()
        self._files.close()
