"""Turns: who waits for the lock of a queue, so that long work gives way between two parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.001
_MOST_LOOKS = 5_000
"""After which an upload goes on all the same."""


class Turns:
    """Thread-safe; one for all queues of a broker.

    A lock that is given back and taken again at once is nearly always got by the same thread. So
    whoever needs the lock of a queue that is being uploaded says so, and the upload, between two
    batches, stays away until it has had it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}

    @contextmanager
    def waiting(self, path: str) -> Iterator[None]:
        """Ask for the lock of a queue, to be taken, and given back or kept, in the block."""
        with self._lock:
            self._waiting[path] = self._waiting.get(path, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                left = self._waiting[path] - 1
                if left:
                    self._waiting[path] = left
                else:
                    del self._waiting[path]

    def give_way(self, path: str, lock: threading.RLock) -> None:
        """Let those have the lock who ask for it. The caller holds it, once, and has it again
        afterwards: what it knew of the queue may have changed."""
        if path not in self._waiting:
            return
        lock.release()
        try:
            for _ in range(_MOST_LOOKS):
                time.sleep(_LOOK_SECONDS)
                if path not in self._waiting:
                    break
        finally:
            lock.acquire()
