"""TraceFiles: the files of a trace, of which the oldest go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, AppendFile, FileOperations
from tieredstore.errors import Invalid
from tieredstore.tier.trace.blocks import TraceBlock, find_blocks

TRACE_FOLDER: Final = "tieredstore.trace"
"""In the store's folder; Java ignores it."""
SUFFIX: Final = ".trace"
_FILES: Final = 8
"""About so many there are, when there are as many bytes as may be."""


class TraceFiles:
    """Appends blocks to files of a folder. One thread at a time. A file is written by one process:
    the next one begins another.

    limit_bytes: of all files together, asked each time.
    """

    def __init__(
        self, folder: Path, limit_bytes: Callable[[], int], files: FileOperations = FILES
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._files = files
        self._file: AppendFile | None = None
        self._path = folder
        self._size = 0

    def append(self, block: bytes, now_ms: int) -> bool:
        """Append a block; False for one that is more than half of what all may be. After an OSError
        the file at hand is left as it is."""
        limit = self._limit_bytes()
        if len(block) > limit // 2:
            return False
        if self._size + len(block) > max(limit // _FILES, len(block)):
            self.close()
        try:
            self._make_room(limit - len(block))
            if self._file is None:
                self._open(now_ms)
            assert self._file is not None
            self._file.write(block)
        except BaseException:
            self.close()
            raise
        self._size += len(block)
        return True

    def close(self) -> None:
        """Write no more to the file at hand. Idempotent."""
        file, self._file, self._size = self._file, None, 0
        if file is not None:
            file.close()

    def _open(self, now_ms: int) -> None:
        self._files.make_directory(self._folder)
        while (path := self._folder / f"{now_ms:020d}{SUFFIX}").exists():
            now_ms += 1
        self._path, self._file = path, self._files.open_append(path, empty=False)

    def _make_room(self, limit: int) -> None:
        paths = list(list_trace_files(self._folder))
        sizes = [self._files.size(path) or 0 for path in paths]
        total = sum(sizes)
        for path, size in zip(paths, sizes, strict=True):
            if total <= limit:
                break
            if self._file is None or path != self._path:
                self._files.unlink(path)
                total -= size


def list_trace_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, the oldest first; none where it is not there."""
    with suppress(FileNotFoundError):
        yield from sorted(
            path
            for path in folder.iterdir()
            if path.suffix == SUFFIX and path.stem.isdecimal() and len(path.stem) == 20
        )


def read_trace_files(path: Path) -> Iterator[tuple[Path, list[TraceBlock], int]]:
    """Read a file, those of a folder, or of a store's folder; yields each with its blocks and the
    number of places with something else. Raises Invalid where there is none, Unavailable."""
    folders = path, path / TRACE_FOLDER
    paths = [path] if path.is_file() else [p for f in folders for p in list_trace_files(f)]
    if not paths:
        raise Invalid(
            f"{path}: no trace: expected a file that tieredStoreTraceEnable=true made, or a folder "
            "with such files",
            path=str(path),
        )
    for found in paths:
        with wrap_os_errors("read", found):
            data = FILES.read(found)
        yield found, *find_blocks(data)
