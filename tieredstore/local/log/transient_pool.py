"""Buffers that messages are put into before they are committed to the files of the log."""

from __future__ import annotations

import contextlib
import mmap
import threading

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Exhausted
from tieredstore.local.log.memory import lock_memory, unlock_memory


class TransientStorePool:
    """Anonymous memory, locked where the system allows that. Thread-safe.

    count: buffers at most; size: bytes of each. They are made when they are first needed and kept.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._left = count
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()

    @property
    def available_buffers(self) -> int:
        """How many buffers can be borrowed now."""
        return self._left + len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """Take a buffer, None when all are in use. Raises Exhausted without memory."""
        with self._lock:
            if self._free:
                return self._free.pop()
            return self._make() if self._left else None

    def make_ahead(self) -> None:
        """Have a buffer at hand, so that `borrow` need not make it, if there may be one more."""
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
        """Put a buffer back, whose bytes nobody needs any more."""
        with self._lock:
            self._free.append(buffer)

    def close(self) -> None:
        """Give the free buffers up."""
        with self._lock:
            while self._free:
                buffer = self._free.pop()
                unlock_memory(buffer)
                with contextlib.suppress(BufferError):  # the writer's view goes later
                    buffer.close()
