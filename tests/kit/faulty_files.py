"""File operations that fail on request and record the calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tieredstore.disk.file_operations import AppendFile, FileOperations


class FaultyFiles(FileOperations):
    """Files with planned failures. `plan[name]` lists the outcomes of the next calls of an
    operation: an errno, or None for success."""

    def __init__(self) -> None:
        self.plan: dict[str, list[int | None]] = {}
        self.log: list[str] = []
        self.during_write: Callable[[], object] = lambda: None

    def _next(self, name: str) -> None:
        self.log.append(name)
        steps = self.plan.get(name)
        step = steps.pop(0) if steps else None
        if step:
            raise OSError(step, os.strerror(step))

    def size(self, path: Path) -> int | None:
        self._next("size")
        return super().size(path)

    def read(self, path: Path) -> bytes:
        self._next("read")
        return super().read(path)

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        self._next("write_synced")
        super().write_synced(path, data, mode)
        self.during_write()

    def open_append(self, path: Path, *, empty: bool) -> AppendFile:
        self._next("open_append")
        return FaultyAppender(self, super().open_append(path, empty=empty))

    def rename(self, path: Path, new_path: Path) -> None:
        self._next("rename")
        super().rename(path, new_path)

    def link(self, path: Path, new_path: Path) -> bool:
        self._next("link")
        return super().link(path, new_path)

    def unlink(self, path: Path) -> None:
        self._next("unlink")
        super().unlink(path)

    def make_directory(self, path: Path, mode: int | None = None) -> None:
        self._next("make_directory")
        super().make_directory(path, mode)

    def sync_directory(self, path: Path) -> None:
        self._next("sync_directory")
        super().sync_directory(path)


class FaultyAppender:
    def __init__(self, files: FaultyFiles, file: AppendFile) -> None:
        self.files = files
        self.file = file

    def write(self, data: bytes) -> None:
        try:
            self.files._next("append")
        except OSError:
            self.file.write(data[: len(data) // 2])
            raise
        self.file.write(data)

    def sync(self) -> None:
        self.files._next("sync")
        self.file.sync()

    def close(self) -> None:
        self.file.close()
