"""The lock of a state directory: one process at a time writes what a tier's writer keeps there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.locks import lock_file, unlock_file
from tieredstore.errors import Fenced

LOCK_FILE = "tieredstore.lock"
_MAX_OWNER_CHARS = 64


class StateLock:
    """Held from `acquire` until `release`, or until the process ends. The file stays.

    It is no broker's `lock`: that one says who owns a local store, and a Java broker holds it, too.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / LOCK_FILE
        self._fd = -1

    def acquire(self) -> None:
        """Make the directory if it is not there, and lock it. Raises Fenced naming the process
        that holds it (this one, too), Invalid without write permission, Unavailable."""
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._fd = lock_file(self._path)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            raise Fenced(
                f"state {self._state}: process {self._owner()} writes there; wait until it ends, "
                "or stop it",
                path=str(self._path),
            ) from None
        except OSError as error:
            self.release()
            raise translate_os_error(error, "lock", self._path) from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            unlock_file(self._fd)
            self._fd = -1

    def _owner(self) -> str:
        with suppress(OSError):
            return self._path.read_text(errors="replace")[:_MAX_OWNER_CHARS] or "unknown"
        return "unknown"
