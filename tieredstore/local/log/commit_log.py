"""The commit log of a store that this process owns: files, tail, reads and the place to append.

Records lie one after the other (`docs/formats/record.md`); one that does not fit into the rest of a
file is preceded by a blank record and begins the next file. The positions, in bytes of the log:
min_offset ≤ flushed_offset ≤ readable_offset ≤ max_offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.layout import BLANK_SIZE
from tieredstore.message.record import blank_record

COMMIT_LOG_DIRECTORY: Final = "commitlog"
_WIPE_BYTES: Final = 1 << 20


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

    def is_resident(self, offset: int, size: int) -> bool:
        """Tell whether these bytes are in the page cache; False when the log does not have them."""
        ...


class CommitLog:
    """One writer (who holds the store's put lock), any number of readers.

    max_offset: behind the last byte that was appended; flushed_offset: behind the last one that a
    sync brought to disk. sync_flush: whether only what is on disk may be dispatched (SYNC_FLUSH).
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        open_files: PositionalFiles,
        *,
        sync_flush: bool = False,
    ) -> None:
        self.file_size = file_size
        self.min_offset = 0
        self.max_offset = 0
        self.flushed_offset = 0
        self._sync_flush = sync_flush
        self._directory = directory
        self._open_files = open_files
        self._files: list[MappedFile] = []
        # For the writer: the file that it writes to, and up to where a record may end in it before
        # `make_room` has to be asked.
        self.view = memoryview(b"")
        self.view_from = 0
        self.limit = 0
        self.closed_reason: str | None = None  # why nothing may be appended

    def make_directory(self) -> None:
        """Make the folder of a new store. Raises Invalid or Unavailable."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            path = str(self._directory)
            raise Invalid(f"{path}: expected a folder, found a file", path=path) from None
        except OSError as error:
            raise translate_os_error(error, "make the folder", self._directory) from error

    def load(self) -> None:
        """Find the files; `set_tail` says afterwards where the log ends. Raises Corrupt or Invalid
        for files that are not as the configuration says."""
        run = list_files(self._directory, file_size=self.file_size, delete_empty_last=True)
        self._files = [
            MappedFile(self._directory / file_name(offset), offset, self.file_size)
            for offset in run.offsets
        ]
        self.min_offset, self.max_offset = run.start, run.end
        self.flushed_offset = run.end

    @property
    def readable_offset(self) -> int:
        return self.max_offset

    @property
    def confirm_offset(self) -> int:
        return self.flushed_offset if self._sync_flush else self.readable_offset

    @property
    def is_empty(self) -> bool:
        """Whether there is no file at all."""
        return not self._files

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that holds (or would hold) a byte."""
        return self._directory / file_name(offset - offset % self.file_size)

    def _file(self, offset: int) -> MappedFile:
        return self._files[(offset - self._files[0].from_offset) // self.file_size]

    def get(self, offset: int, size: int) -> memoryview | None:
        end = self.readable_offset
        if size < 0 or offset < self.min_offset or offset + size > end:
            return None
        file = self._file(offset) if offset < end else None
        inside = offset % self.file_size
        if file is None or inside + size > self.file_size:
            return None
        try:
            return file.view[inside : inside + size]
        except Unavailable:
            if offset >= self.min_offset:
                raise
            return None  # deleted meanwhile

    def is_resident(self, offset: int, size: int) -> bool:
        if not self.min_offset <= offset <= self.readable_offset - size:
            return False
        path = str(self.path_of(offset))
        return self._open_files.is_resident(path, offset % self.file_size, size)

    def rest_of_file(self, offset: int) -> memoryview:
        """Return everything readable from an offset on, up to the end of its file."""
        end = min(offset - offset % self.file_size + self.file_size, self.readable_offset)
        return self.get(offset, end - offset) or memoryview(b"")

    def set_tail(self, offset: int) -> None:
        """End the log here: what lies behind is no message and is wiped; what lies before counts as
        flushed. Raises Unavailable."""
        while self._files and self._files[-1].from_offset >= max(offset, self.min_offset + 1):
            file = self._files.pop()
            file.close()
            self._open_files.delete(file.path)
        if self._files and offset < self._files[-1].from_offset + self.file_size:
            file = self._files[-1]
            inside = offset - file.from_offset
            if any(file.view[inside : inside + 8]):
                _wipe(file, inside)
        self.max_offset = self.flushed_offset = offset

    def make_room(self, size: int) -> int:
        """Return where the next `size` bytes go, at `max_offset` or at the beginning of the next
        file; `view` has room for them then. Raises Busy when the log is not written to any more,
        Unavailable, and Invalid when no file is large enough."""
        if self.closed_reason is not None:
            raise Busy(self.closed_reason)
        if size + BLANK_SIZE > self.file_size:
            raise Invalid(
                f"message of {size} bytes: expected at most {self.file_size - BLANK_SIZE}, which "
                "is what a commit log file takes"
            )
        file = self._next_file()
        room = file.from_offset + file.size - self.max_offset
        if size + BLANK_SIZE > room:
            inside = self.max_offset - file.from_offset
            file.reserve(inside + BLANK_SIZE)
            file.view[inside : inside + BLANK_SIZE] = blank_record(room)
            self.max_offset += room
            file = self._next_file()
        position = self.max_offset
        inside = position - file.from_offset
        file.reserve(inside + size)
        touched = file.touch(inside, inside + size)
        self.view, self.view_from = file.view, file.from_offset
        self.limit = file.from_offset + min(touched, file.size - BLANK_SIZE)
        return position

    def _next_file(self) -> MappedFile:
        """The file into which `max_offset` falls, made if need be. Raises Unavailable."""
        index = -1
        if self._files:
            index = (self.max_offset - self._files[0].from_offset) // self.file_size
        if 0 <= index < len(self._files):
            return self._files[index]
        begin = self.max_offset - self.max_offset % self.file_size
        file = MappedFile.create(self._directory / file_name(begin), begin, self.file_size)
        self._files.append(file)
        return file

    def sync(self) -> int:
        """Bring what is readable now to disk; returns the new `flushed_offset`. One thread at a
        time. Raises Unavailable; then nothing moved."""
        end = self.readable_offset
        for file in self._files:
            if file.from_offset < end and file.from_offset + file.size > self.flushed_offset:
                file.sync()
        self.flushed_offset = end
        return end

    def delete_files_before(self, offset: int) -> list[Path]:
        """Delete the files that end at or before an offset, oldest first, and return their paths:
        never one that is not flushed, so never the last. Raises Unavailable or Invalid; the file
        that could not be deleted stays then."""
        deleted = []
        offset = min(offset, self.flushed_offset, self.max_offset - 1)
        while self.min_offset + self.file_size <= offset:
            file = self._file(self.min_offset)
            self._open_files.delete(file.path)
            self.min_offset += self.file_size
            file.close()
            self._open_files.sync_folder(self._directory)
            deleted.append(file.path)
        return deleted

    def close(self) -> None:
        """Drop the mappings."""
        self.view, self.limit = memoryview(b""), 0
        for file in self._files:
            file.close()


def _wipe(file: MappedFile, inside: int) -> None:
    """Zero a file from a position on, so that nothing stale can look like a later record.

    In place, and only what is not zero yet: the file keeps its size at every moment, and what is
    sparse stays so.
    """
    for begin in range(inside, file.size, _WIPE_BYTES):
        piece = file.view[begin : begin + _WIPE_BYTES]
        if np.frombuffer(piece, np.uint8).any():
            piece[:] = bytes(len(piece))
