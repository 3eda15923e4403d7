"""Waits for other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

LONGEST_S = 60.0


def wait_for(is_done: Callable[[], bool]) -> None:
    """Wait until a condition is true. Fails the test if that takes too long."""
    deadline = time.monotonic() + LONGEST_S
    while not is_done():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


class WatchedLock:
    """A lock that records which threads have tried to acquire it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.acquire, self.release = lock.acquire, lock.release
        self.waited: set[int | None] = set()

    def __enter__(self) -> None:
        self.waited.add(threading.get_ident())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
