"""The index of the owner: appends entries to the newest file and begins the next one when full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.local.index.reader import (
    INDEX_DIRECTORY,
    IndexShape,
    candidates,
    check_shape,
    index_paths,
)
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.open_files import OpenFiles
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    put_items,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class IndexService:
    """Key index of one store. One thread puts, any number query.

    end_timestamp_ms: store time of the last entry of the last *full* file, which is what the
    checkpoint says about the index; 0 while no file is full.
    """

    def __init__(self, root: Path, shape: IndexShape, files: OpenFiles, clock: Clock) -> None:
        self.end_timestamp_ms = 0
        self._root = root
        self._shape = shape
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._current: MappedFile | None = None

    def load(self) -> None:
        """Find the files. Raises Corrupt for one of another size."""
        self._paths = index_paths(self._root)
        for path in self._paths:
            check_shape(self._files, path, self._shape)
        if self._paths:
            self._current = MappedFile(Path(self._paths[-1]), 0, self._shape.size_bytes)

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last message that has an entry, 0 without one."""
        return self._header().end_physical_offset if self._current is not None else 0

    def _header(self) -> LocalIndexHeader:
        assert self._current is not None
        return LocalIndexHeader.unpack(self._current.view)

    def put(self, hashes: Int32s, physical_offsets: Int64s, store_timestamps: Int64s) -> None:
        """Append entries in the order of their messages. Entries in front of the last one of the
        current file are there already. Raises Unavailable."""
        if self._current is not None and len(hashes):
            end = self._header().end_physical_offset
            if int(physical_offsets[0]) < end:
                new = physical_offsets >= end
                hashes = hashes[new]
                physical_offsets, store_timestamps = physical_offsets[new], store_timestamps[new]
        done = 0
        while done < len(hashes):
            file = self._current
            if file is None or self._header().index_count >= self._shape.max_items:
                file = self._next_file()
            last = min(self._header().index_count + len(hashes) - done, self._shape.max_items)
            file.reserve(HEADER_SIZE + self._shape.slots * SLOT_SIZE + last * ITEM_SIZE)
            done += put_items(
                file.view,
                self._shape.slots,
                hashes[done:],
                physical_offsets[done:],
                store_timestamps[done:],
            )

    def _next_file(self) -> MappedFile:
        header = LocalIndexHeader()
        if self._current is not None:
            last = self._header()
            if last.end_physical_offset > 0:
                header.begin_physical_offset = last.end_physical_offset
                header.end_physical_offset = last.end_physical_offset
            if last.end_timestamp_ms > 0:
                header.begin_timestamp_ms = header.end_timestamp_ms = last.end_timestamp_ms
            self._current.sync()
            self._current.close()
            self.end_timestamp_ms = last.end_timestamp_ms
        file = MappedFile.create(self._new_path(), 0, self._shape.size_bytes)
        file.reserve(1)
        file.view[: len(header.pack())] = header.pack()
        with self._lock:
            self._paths.append(str(file.path))
        self._current = file
        return file

    def _new_path(self) -> Path:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006 - Java: local zone
        name = int(now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}")
        if self._paths:  # newer files sort behind older ones, also when the clock was set back
            name = max(name, int(Path(self._paths[-1]).name) + 1)
        return self._root / INDEX_DIRECTORY / str(name)

    def candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have the key, newest first."""
        with self._lock:
            paths = self._paths[::-1]
        for path in paths:
            yield from candidates(self._files, path, self._shape, key_hash, begin_ms, end_ms)

    def sync(self) -> None:
        """The entries put so far are on disk when this returns."""
        if self._current is not None:
            self._current.sync()

    def close(self) -> None:
        """Drop the mapping."""
        if self._current is not None:
            self._current.close()
