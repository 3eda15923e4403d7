"""Writes that are counted, and one of them is the last: files of a tier and of the metadata.

`os._exit` is what SIGKILL leaves: the page cache, and nothing else.
"""

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
    """Return where to die: before each write (so also after the one in front), and in the middle
    of those that have one."""
    return [
        (at, torn)
        for at, what in enumerate(writes)
        for torn in ([False, True] if what.endswith("write") else [False])
    ]


class Writes:
    """Counts writes and dies at one of them: before it, or with half of it done."""

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
        """Leave `writes.json`, what each write was, in the root of a run that ended."""
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
        """Nothing: a killed process loses nothing that the system has."""

    def sync_directory(self, path: str) -> None:
        """Nothing, as above."""


class KillableOperations(FileOperations):
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def write_synced(self, path: Path, data: bytes) -> None:
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
        """Nothing, as above."""


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
    """Runs of a module of work: to the end, or to a write at which one dies."""

    def __init__(self, module: str, **inputs: Path) -> None:
        self._driver = Driver(module)
        self._inputs = inputs

    def run(self, root: Path, die_at: int | None = None, torn: bool = False) -> int:
        """Return 0 for a run that ended, `KILLED` for one that was killed."""
        return self._driver.run({"root": root, "die_at": die_at, "torn": torn, **self._inputs})

    def close(self) -> None:
        self._driver.close()
