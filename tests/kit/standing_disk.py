"""A disk with one folder that hangs for as long as a test wants."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

WAIT_S: Final = 120.0
"""Maximum time in seconds for which the disk hangs. After this time the disk continues by itself,
and `has_given_up` is set."""
_CALLS: Final = ("pread", "pwrite", "fsync", "fdatasync")


class StandingDisk:
    """Patched positional reads, writes and syncs of the files below `folder`. They block between
    `stop` and `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.has_given_up = False
        self._folder = str(folder.resolve())
        self._turns = threading.Event()
        self._turns.set()
        for name in _CALLS:
            self._patch(patch, name)

    def _patch(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def call(fd: int, *args: object) -> object:
            if not self._turns.is_set() and self._is_below(fd):
                self.wait()
            return real(fd, *args)

        patch.setattr(os, name, call)

    def _is_below(self, fd: int) -> bool:
        return str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(self._folder)

    def wait(self) -> None:
        """Block while the disk hangs."""
        if not self._turns.wait(WAIT_S):
            self.has_given_up = True

    def stop(self) -> None:
        self._turns.clear()

    def go_on(self) -> None:
        self._turns.set()
