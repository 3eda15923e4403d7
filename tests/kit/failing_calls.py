"""Calls of the system that fail as if the machine had no room: each call of a test in turn."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import Any, Final

import pytest

CALLS: Final = ("open", "pwrite", "ftruncate", "posix_fallocate", "mkdir")
"""Functions of the module `os` that need space, descriptors or memory."""


class FailingCalls:
    """From call `first` on (from 0; None: never), `count` of them fail with `error`.

    error: an errno of OSError, or MemoryError. Calls of all threads count.
    """

    def __init__(self, error: int | type[MemoryError] = errno.ENOSPC) -> None:
        self.error = error
        self.first: int | None = None
        self.count = 0
        self.calls = 0
        self.failed = 0
        self._lock = threading.Lock()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put them in place of the functions of `os`, and of `mmap.mmap`."""
        for name in CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))
        if self.error is MemoryError or self.error == errno.ENOMEM:
            patch.setattr(mmap, "mmap", self._wrap(mmap.mmap))

    def fail(self, first: int, count: int) -> None:
        """Fail `count` calls from the one with this number on, counted from now."""
        with self._lock:
            self.first, self.count, self.calls, self.failed = first, count, 0, 0

    def stop(self) -> None:
        """Fail no more."""
        with self._lock:
            self.first = None

    def _wrap(self, real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                number, self.calls = self.calls, self.calls + 1
                fails = self.first is not None and self.first <= number < self.first + self.count
                self.failed += fails
            if fails:
                if isinstance(self.error, int):
                    raise OSError(self.error, os.strerror(self.error))
                raise self.error
            return real(*arguments, **named)

        return call
