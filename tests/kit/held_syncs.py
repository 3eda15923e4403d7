"""File syncs that a test can delay, fail or count."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

WAIT_S: Final = 60.0


class HeldSyncs:
    """Patched os.fdatasync and os.fsync. `synced` lists the paths in order of completion. Between
    `hold` and `release`, background flushes wait if the file's path contains `part`. If `error` is
    set, the next of these syncs raises it."""

    def __init__(self, patch: pytest.MonkeyPatch, part: str = "/commitlog/") -> None:
        self.synced: list[str] = []
        self.error: OSError | None = None
        self.begun = threading.Event()
        self._part = part
        self._open = threading.Event()
        self._open.set()
        for name in ("fdatasync", "fsync"):
            self._patch(patch, name)

    def _patch(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def sync(fd: int) -> None:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            # Only syncs of a flush wait. Other threads sync the files that they create.
            if self._part in path and threading.current_thread().name.startswith("flush-"):
                self.begun.set()
                assert self._open.wait(WAIT_S)
                error, self.error = self.error, None
                if error is not None:
                    raise error
            real(fd)
            self.synced.append(path)

        patch.setattr(os, name, sync)

    def hold(self) -> None:
        self.begun.clear()
        self._open.clear()

    def release(self) -> None:
        self._open.set()
