"""A state directory as a tier's writer owns it: the lock, by which one process at a time writes
there, and the record of the writer epochs that were claimed with it.

The record is JSON in `tieredstore.epochs`: `format`; `lock`, the inode of the lock file, which a
copy of the directory does not have; `claims`, oldest first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.disk.locks import is_locked, lock_file, unlock_file
from tieredstore.errors import Fenced, Invalid

LOCK_FILE = "tieredstore.lock"
RECORD_FILE = "tieredstore.epochs"
RECORD_FORMAT = 1
_MAX_OWNER_CHARS = 64
_log = logging.getLogger(__name__)


def is_held(state: Path) -> bool | None:
    """Tell whether a process of this machine writes with a state directory. Takes nothing; None
    where the system does not tell."""
    return is_locked(state / LOCK_FILE)


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

    @property
    def inode(self) -> int:
        """The inode of the lock file, which is held."""
        return os.fstat(self._fd).st_ino

    def _owner(self) -> str:
        with suppress(OSError):
            return self._path.read_text(errors="replace")[:_MAX_OWNER_CHARS] or "unknown"
        return "unknown"


class _Record(msgspec.Struct, forbid_unknown_fields=False):
    format: int
    lock: int
    claims: list[str]


class StateRecord:
    """The EpochRecord of a state directory whose lock is held."""

    def __init__(self, state: Path, lock: StateLock, operations: FileOperations = FILES) -> None:
        self._path = state / RECORD_FILE
        self._lock = lock
        self._operations = operations

    def load(self) -> Sequence[str]:
        """Return the claims, oldest first; none where the record is damaged, or was copied with the
        directory. Raises Invalid for a newer format, Unavailable."""
        try:
            content = self._operations.read(self._path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise translate_os_error(error, "read", self._path) from error
        try:
            found = msgspec.json.decode(content, type=_Record)
        except msgspec.DecodeError as error:
            _log.warning("%s: not a record of writer epochs: %s", self._path, error)
            return ()
        if found.format > RECORD_FORMAT:
            raise Invalid(
                f"{self._path}: expected format {RECORD_FORMAT}, found {found.format}",
                path=str(self._path),
            )
        if found.lock != self._lock.inode:
            _log.warning(
                "%s: of another directory than this one, which is a copy of it (expected inode %d "
                "of %s, found %d)",
                self._path,
                found.lock,
                LOCK_FILE,
                self._lock.inode,
            )
            return ()
        return found.claims

    def save(self, claims: Sequence[str]) -> None:
        """Replace the claims, durably: a temporary file, synced and renamed. Raises Invalid,
        Unavailable."""
        content = msgspec.json.encode(_Record(RECORD_FORMAT, self._lock.inode, list(claims)))
        try:
            self._operations.replace_file(self._path, content + b"\n")
        except OSError as error:
            raise translate_os_error(error, "write", self._path) from error
