"""System calls that fail as if the machine had run out of resources."""

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
    """Makes `count` calls fail with `error`, an errno or MemoryError. The first failing call is
    number `first` (from 0, None: no call fails), counted over all threads."""

    def __init__(self, error: int | type[MemoryError] = errno.ENOSPC) -> None:
        self.error = error
        self.first: int | None = None
        self.count = 0
        self.calls = 0
        self.failed = 0
        self._lock = threading.Lock()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace `mmap.mmap` and functions of `os` with versions that can fail."""
        for name in CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))
        if self.error is MemoryError or self.error == errno.ENOMEM:
            patch.setattr(mmap, "mmap", self._wrap(mmap.mmap))

    def fail(self, first: int, count: int) -> None:
        """Make `count` calls fail, starting with call number `first` from now on."""
        with self._lock:
            self.first, self.count, self.calls, self.failed = first, count, 0, 0

    def stop(self) -> None:
        """Let all further calls succeed."""
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
