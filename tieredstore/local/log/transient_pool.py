"""Buffers for messages that are not yet committed to the log files. Each buffer belongs to one
file."""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Exhausted
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.log.memory import lock_memory, unlock_memory


class TransientStorePool:
    """Pool of buffers in anonymous memory, locked if the system allows it. Thread-safe. Buffers are
    allocated when they are first needed, and then kept. `count`: maximum number of buffers. `size`:
    bytes of each buffer."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._left = count
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def borrow(self) -> mmap.mmap | None:
        """Take a buffer, or return None if all are in use. Raises Exhausted if there is not enough
        memory."""
        with self._lock:
            if self._free:
                return self._free.pop()
            return self._make() if self._left else None

    def make_ahead(self) -> None:
        """Allocate a buffer for the next `borrow`, unless the pool is at its limit."""
        with self._lock, contextlib.suppress(Exhausted):
            if self._left and not self._free:
                self._free.append(self._make())

    def _make(self) -> mmap.mmap:
        try:
            buffer = mmap.mmap(-1, self.size)
        except OSError as error:
            action = f"get {self.size} bytes for the transient store pool"
            raise translate_os_error(error, action, "memory") from error
        lock_memory(buffer)
        self._left -= 1
        return buffer

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a buffer to the pool."""
        with self._lock:
            self._free.append(buffer)

    def close(self) -> None:
        """Release the free buffers."""
        with self._lock:
            while self._free:
                buffer = self._free.pop()
                unlock_memory(buffer)
                with contextlib.suppress(BufferError):  # the writer's view is released later
                    buffer.close()


class WriteBuffers:
    """Assigns buffers to files. If no buffer is free for a new file, the whole file is written
    directly. `fail_without_buffer`: called in this case, returns whether the write must fail
    instead."""

    def __init__(self, pool: TransientStorePool, fail_without_buffer: Callable[[], bool]) -> None:
        self._pool = pool
        self._fail_without_buffer = fail_without_buffer
        # By the offset of a file's first byte. None for a file that is written directly.
        self._buffers: dict[int, mmap.mmap | None] = {}

    def make_ahead(self) -> None:
        """Allocate the pool's buffers in the background."""
        self._pool.make_ahead()

    def take(self, file: MappedFile) -> mmap.mmap | None:
        """Return the buffer for a file, or None if the file is written directly. The first call for
        a file borrows the buffer. Raises Exhausted."""
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
        """Return the buffer of the file that begins at `from_offset`, or None."""
        return self._buffers.get(from_offset)

    def give_back(self, from_offset: int) -> None:
        """Return the buffer of a full file to the pool, after it was copied to the file."""
        buffer = self._buffers.pop(from_offset, None)
        if buffer is not None:
            self._pool.give_back(buffer)

    def close(self) -> None:
        """Return all buffers, and close the pool."""
        for from_offset in list(self._buffers):
            self.give_back(from_offset)
        self._pool.close()
