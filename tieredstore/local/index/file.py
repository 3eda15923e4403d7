"""`IndexFile`: the index file that the owner of a store writes, mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.local.index.reader import IndexShape
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    put_items,
)


class IndexFile:
    """One mapped file of `shape`, format `docs/formats/local-index.md`. One thread puts."""

    def __init__(self, file: MappedFile, shape: IndexShape) -> None:
        self._file = file
        self._shape = shape

    @classmethod
    def open(cls, path: Path, shape: IndexShape) -> IndexFile:
        """Map a file that is there. Raises Unavailable."""
        return cls(MappedFile(path, 0, shape.size_bytes), shape)

    @classmethod
    def create(cls, path: Path, shape: IndexShape, header: LocalIndexHeader) -> IndexFile:
        """Make a file without entries. Raises Unavailable."""
        file = MappedFile.create(path, 0, shape.size_bytes)
        try:
            packed = header.pack()
            file.view[: len(packed)] = packed
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)  # it is made again
            raise
        return cls(file, shape)

    def header(self) -> LocalIndexHeader:
        """Return the header as it is now."""
        return LocalIndexHeader.unpack(self._file.view)

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.header().index_count >= self._shape.max_items

    def put(
        self,
        hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Append entries, the first of them that fit; returns how many. Raises Unavailable."""
        last = min(self.header().index_count + len(hashes), self._shape.max_items)
        self._file.reserve(HEADER_SIZE + self._shape.slots * SLOT_SIZE + last * ITEM_SIZE)
        return put_items(
            self._file.view, self._shape.slots, hashes, physical_offsets, store_timestamps
        )

    def sync(self) -> None:
        """Sync the file: the entries put so far are on disk when this returns. Raises
        Unavailable."""
        self._file.sync()

    def close(self) -> None:
        """Drop the mapping."""
        self._file.close()
