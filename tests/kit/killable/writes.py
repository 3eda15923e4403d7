"""Counts the writes to a tier and its metadata, and kills a run at one of them. `os._exit` leaves
the same state as SIGKILL, because the page cache survives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kit.killable.driver import Driver
from tieredstore.contracts.segment import Buffer
from tieredstore.disk.file_operations import AppendFile, FileOperations
from tieredstore.providers.posix.calls import PosixCalls

KILLED = 9
WRITES = "writes.json"


def load_writes(root: Path) -> list[str]:
    writes: list[str] = json.loads((root / WRITES).read_bytes())
    return writes


def kill_points(writes: Sequence[str]) -> list[tuple[int, bool]]:
    """Return the kill points: before each write, and in the middle of each write that can be
    torn."""
    return [
        (at, torn)
        for at, what in enumerate(writes)
        for torn in ([False, True] if what.endswith("write") else [False])
    ]


class Writes:
    """Counts writes, and ends the process before a chosen write or halfway through it."""

    def __init__(self, die_at: int | None, torn: bool) -> None:
        self._die_at = die_at
        self._torn = torn
        self.seen: list[str] = []

    def next(self, what: str, half: Callable[[], object] | None = None) -> None:
        if len(self.seen) == self._die_at:
            if self._torn and half is not None:
                half()
            os._exit(KILLED)
        self.seen.append(what)

    def save(self, root: Path) -> None:
        """Save descriptions of a completed run's writes to `writes.json` in its root."""
        (root / WRITES).write_text(json.dumps(self.seen))


class KillableCalls(PosixCalls):
    def __init__(self, writes: Writes) -> None:
        super().__init__()
        self._writes = writes

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._writes.next("tier create")
        return super().open(path, flags)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        self._writes.next("tier write", lambda: os.pwrite(fd, data[: len(data) // 2], position))
        return super().write(fd, [data], position)

    def truncate(self, fd: int, length: int) -> None:
        self._writes.next("tier truncate")
        super().truncate(fd, length)

    def make_directory(self, path: str) -> None:
        self._writes.next("tier mkdir")
        super().make_directory(path)

    def unlink(self, path: str) -> None:
        self._writes.next("tier unlink")
        super().unlink(path)

    def sync(self, fd: int) -> None:
        """Do nothing, because a killed process's data stays in the system's cache."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: like files, folders are not synced."""


class KillableOperations(FileOperations):
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        self._writes.next("metadata write", lambda: path.write_bytes(data[: len(data) // 2]))
        path.write_bytes(data)

    def open_append(self, path: Path, *, empty: bool) -> AppendFile:
        self._writes.next("journal open")
        return _KillableAppend(super().open_append(path, empty=empty), self._writes)

    def rename(self, path: Path, new_path: Path) -> None:
        self._writes.next("metadata rename")
        super().rename(path, new_path)

    def link(self, path: Path, new_path: Path) -> bool:
        self._writes.next("metadata link")
        return super().link(path, new_path)

    def unlink(self, path: Path) -> None:
        self._writes.next("metadata unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Do nothing: like files, folders are not synced."""


class _KillableAppend:
    def __init__(self, file: AppendFile, writes: Writes) -> None:
        self._file = file
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.next("journal write", lambda: self._file.write(data[: len(data) // 2]))
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class KillableRuns:
    """Runs of a work module. Each run completes or is killed at a write."""

    def __init__(self, module: str, **inputs: Path) -> None:
        self._driver = Driver(module)
        self._inputs = inputs

    def run(self, root: Path, die_at: int | None = None, torn: bool = False) -> int:
        """Run the module once. Return 0 for a completed run and `KILLED` for a killed one."""
        return self._driver.run({"root": root, "die_at": die_at, "torn": torn, **self._inputs})

    def close(self) -> None:
        self._driver.close()
