"""The owner's key index. New entries are appended to the newest file, and the next file begins when
it is full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.errors import Corrupt
from tieredstore.local.index.reader import (
    INDEX_DIRECTORY,
    IndexShape,
    candidates,
    check_last_item,
    check_shape,
    index_paths,
    read_header,
)
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    put_items,
)

_log = logging.getLogger(__name__)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class _FullFile(NamedTuple):
    """Full index file that is not on disk yet. `end_timestamp_ms`: store time of its last entry."""

    path: str
    file: IndexFile
    end_timestamp_ms: int


class IndexService:
    """Key index of one store. One thread puts, and any number of threads query. `end_timestamp_ms`:
    store time of the last entry in the last *full* file on disk, or 0, for the checkpoint.
    `missing_from`: position in the log after which messages lack entries according to `load`, or
    None."""

    def __init__(self, root: Path, shape: IndexShape, files: PositionalFiles, clock: Clock) -> None:
        self.end_timestamp_ms = 0
        self.missing_from: int | None = None
        self._root = root
        self._shape = shape
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._current: IndexFile | None = None
        self._full: list[_FullFile] = []

    def load(self) -> None:
        """Find the index files. A file whose header does not match its items is deleted with all
        later files, because their entries can be rebuilt from the log (see `missing_from`). May be
        called again after a recovery has written other files. Raises Corrupt for a file of the
        wrong size."""
        if self._current is not None:
            self._current.close()
            self._current = None
        self._paths = index_paths(self._root)
        for path in self._paths:
            check_shape(self._files, path, self._shape)
        self._drop_damaged()
        if self._paths:
            self._current = IndexFile.open(Path(self._paths[-1]), self._shape)

    def _drop_damaged(self) -> None:
        self.missing_from = None
        kept: list[str] = []
        for path in self._paths:
            try:
                check_last_item(self._files, path, self._shape)
            except Corrupt as damage:
                _log.warning("%s. This file and later ones are rebuilt", damage)
                break
            kept.append(path)
        for path in reversed(self._paths[len(kept) :]):
            self._files.delete(path)
            last = read_header(self._files, kept[-1]) if kept else None
            self.missing_from = 0 if last is None else last.end_physical_offset
        self._paths = kept

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last message with an entry, or 0 without entries."""
        return self._current.header().end_physical_offset if self._current is not None else 0

    def put(self, hashes: Int32s, physical_offsets: Int64s, store_timestamps: Int64s) -> None:
        """Append entries in the order of their messages. Entries up to the last one of the current
        file already exist and are skipped. Raises Unavailable."""
        if self._current is not None and len(hashes):
            end = self._current.header().end_physical_offset
            if int(physical_offsets[0]) < end:
                new = physical_offsets >= end
                hashes = hashes[new]
                physical_offsets, store_timestamps = physical_offsets[new], store_timestamps[new]
        done = 0
        while done < len(hashes):
            file = self._current
            if file is None or file.is_full:
                file = self._next_file()
            done += file.put(hashes[done:], physical_offsets[done:], store_timestamps[done:])

    def _next_file(self) -> IndexFile:
        header = LocalIndexHeader()
        if self._current is not None:
            last = self._current.header()
            if last.end_physical_offset > 0:
                header.begin_physical_offset = last.end_physical_offset
                header.end_physical_offset = last.end_physical_offset
            if last.end_timestamp_ms > 0:
                header.begin_timestamp_ms = header.end_timestamp_ms = last.end_timestamp_ms
        path = self._new_path()
        file = IndexFile.create(path, self._shape, header)
        with self._lock:
            if self._current is not None:
                # `sync` flushes and closes it, so the dispatch does not wait.
                self._full.append(_FullFile(self._paths[-1], self._current, last.end_timestamp_ms))
            self._paths.append(str(path))
            self._current = file
        return file

    def _new_path(self) -> Path:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006 - Java: local zone
        name = int(now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}")
        if self._paths:  # newer files sort after older ones, also when the clock was set back
            name = max(name, int(Path(self._paths[-1]).name) + 1)
        folder = self._root / INDEX_DIRECTORY
        while (path := folder / str(name)).exists():  # left by an attempt of this millisecond
            name += 1
        return path

    def candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return the physical offsets of messages that may have the key, newest first."""
        with self._lock:
            paths = self._paths[::-1]
        for path in paths:
            yield from candidates(self._files, path, self._shape, key_hash, begin_ms, end_ms)

    def sync(self) -> None:
        """Sync the files, full files first. All entries put before the call are then on disk.
        Raises Unavailable."""
        with self._lock:
            full, current = list(self._full), self._current
        for found in full:
            found.file.sync()
            self.end_timestamp_ms = found.end_timestamp_ms
        with self._lock:
            del self._full[: len(full)]
        for found in full:
            found.file.close()
        if current is not None:
            current.sync()

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete the files whose messages are all before `min_physical_offset`, except the newest
        file. Returns the number of deleted files. Raises Unavailable. The next call then
        continues."""
        count = 0
        while len(self._paths) > 1:
            path = self._paths[0]
            end = read_header(self._files, path).end_physical_offset
            if end >= min_physical_offset or any(path == full.path for full in self._full):
                break
            self._files.delete(path)
            with self._lock:
                del self._paths[0]
            count += 1
        return count

    def close(self) -> None:
        """Close the mappings."""
        for found in self._full:
            found.file.close()
        if self._current is not None:
            self._current.close()


class IndexFile:
    """Mapped index file of the given `shape`, in the format of `docs/formats/local-index.md`. Only
    one thread puts."""

    def __init__(self, file: MappedFile, shape: IndexShape) -> None:
        self._file = file
        self._shape = shape

    @classmethod
    def open(cls, path: Path, shape: IndexShape) -> IndexFile:
        """Map an existing file. Raises Unavailable."""
        return cls(MappedFile(path, 0, shape.size_bytes), shape)

    @classmethod
    def create(cls, path: Path, shape: IndexShape, header: LocalIndexHeader) -> IndexFile:
        """Create a file without entries. Raises Unavailable."""
        file = MappedFile.create(path, 0, shape.size_bytes)
        try:
            packed = header.pack()
            file.view[: len(packed)] = packed
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)  # it is created again
            raise
        return cls(file, shape)

    def header(self) -> LocalIndexHeader:
        """Return the current header of the file."""
        return LocalIndexHeader.unpack(self._file.view)

    @property
    def is_full(self) -> bool:
        """Whether the file is full."""
        return self.header().index_count >= self._shape.max_items

    def put(
        self,
        hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Append as many of the first entries as fit, and return their number. Raises
        Unavailable."""
        last = min(self.header().index_count + len(hashes), self._shape.max_items)
        self._file.reserve(HEADER_SIZE + self._shape.slots * SLOT_SIZE + last * ITEM_SIZE)
        return put_items(
            self._file.view, self._shape.slots, hashes, physical_offsets, store_timestamps
        )

    def sync(self) -> None:
        """Sync all entries put before the call to disk. Raises Unavailable."""
        self._file.sync()

    def close(self) -> None:
        """Close the mapping."""
        self._file.close()
