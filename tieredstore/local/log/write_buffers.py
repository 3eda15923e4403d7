"""Buffers of the transient store pool that stand in front of the files of a log."""

from __future__ import annotations

import mmap
from collections.abc import Callable

from tieredstore.errors import Exhausted
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.log.transient_pool import TransientStorePool


class WriteBuffers:
    """Which buffer each file has that is being written; a file that found none free is written to
    directly, all of it. fail_without_buffer: asked then whether it is not written to at all."""

    def __init__(self, pool: TransientStorePool, fail_without_buffer: Callable[[], bool]) -> None:
        self._pool = pool
        self._fail_without_buffer = fail_without_buffer
        # By the offset of a file's first byte; None for a file that is written to directly.
        self._buffers: dict[int, mmap.mmap | None] = {}

    def make_ahead(self) -> None:
        """Have the pool's buffers made in the background."""
        self._pool.make_ahead()

    def take(self, file: MappedFile) -> mmap.mmap | None:
        """Return the buffer in front of a file, borrowed for its first bytes; None when the file is
        written to directly. Raises Exhausted."""
        if file.from_offset not in self._buffers:
            buffer = self._pool.borrow()
            if buffer is None and self._fail_without_buffer():
                raise Exhausted(
                    f"{file.path}: expected a free buffer of the transient store pool, found none "
                    "(fastFailIfNoBufferInStorePool)",
                    path=str(file.path),
                )
            self._buffers[file.from_offset] = buffer
        return self._buffers[file.from_offset]

    def find(self, from_offset: int) -> mmap.mmap | None:
        """Return the buffer in front of the file that begins at an offset; None without one."""
        return self._buffers.get(from_offset)

    def give_back(self, from_offset: int) -> None:
        """Give the buffer of a file that is full and copied back to the pool."""
        buffer = self._buffers.pop(from_offset, None)
        if buffer is not None:
            self._pool.give_back(buffer)

    def close(self) -> None:
        """Give all back, and close the pool."""
        for from_offset in list(self._buffers):
            self.give_back(from_offset)
        self._pool.close()
