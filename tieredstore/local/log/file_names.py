"""Lists and checks files of a fixed size that are named by the offset of their first byte."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.errors import Corrupt, Invalid

NAME_DIGITS = 20


_SIZE_KEYS: Final = {
    "consumequeue": "mappedFileSizeConsumeQueue",
    "consumequeue_ext": "mappedFileSizeConsumeQueueExt",
}
"""Java's configuration keys for the sizes of files, by the folder of a store that contains the
files. The folder of the commit log is not included."""


def file_name(offset: int) -> str:
    """Return the name of the file that begins at `offset`."""
    return f"{offset:0{NAME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class FileRun:
    """Consecutive files with the offsets [start, end), `file_size` bytes each. For a directory
    without files, start and end are equal, and `file_size` is 0 unless the caller gave a size."""

    file_size: int
    start: int
    end: int

    @property
    def offsets(self) -> range:
        return range(self.start, self.end, self.file_size) if self.end > self.start else range(0)


def list_files(
    directory: Path, *, file_size: int | None, unit_size: int = 1, delete_empty_last: bool = False
) -> FileRun:
    """Check the files of a directory and describe them. Sub-directories, and an unused last file of
    length 0, are skipped.

    `file_size`: required size of each file (bytes), or None to use the size of the first file.
    `unit_size`: required divisor of the size.
    `delete_empty_last`: whether to delete an unused last file. Only an owner sets this.

    Raises Corrupt for a wrong length, a gap or an overlap, and Invalid for a foreign name.
    """
    found: list[tuple[int, int]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir():
                    continue
                name = entry.name
                if not (name.isascii() and name.isdigit() and name == file_name(int(name))):
                    raise Invalid(
                        f"{entry.path}: expected a file named by its offset in {NAME_DIGITS} "
                        "digits. Move it elsewhere if it is not the store's",
                        path=entry.path,
                    )
                try:
                    found.append((int(name), entry.stat().st_size))
                except FileNotFoundError as error:
                    if Path(entry.path).is_symlink():
                        raise translate_os_error(error, "follow the link", entry.path) from error
                    continue  # its owner has just deleted it
    except FileNotFoundError:
        return FileRun(file_size or 0, 0, 0)
    except OSError as error:
        raise translate_os_error(error, "list", directory) from error
    found.sort()
    if found and found[-1][1] == 0:
        offset, _ = found.pop()
        if delete_empty_last:
            empty = directory / file_name(offset)
            with wrap_os_errors("delete the empty file", empty):
                empty.unlink()
    if not found:
        return FileRun(file_size or 0, 0, 0)
    size = file_size or found[0][1]
    start = expected = found[0][0]
    for offset, length in found:
        path = f"{directory}/{file_name(offset)}"
        if length != size or size == 0 or size % unit_size:
            if length != size and all(other == length for _, other in found):
                raise refuse_size(path, size, length)
            expected_size = f"{size}" if length != size else f"a multiple of {unit_size}"
            raise Corrupt(
                f"{path}: expected a file of {expected_size} bytes, found {length}", path=path
            )
        if offset != expected and not (directory / file_name(expected - size)).exists():
            start = expected = offset  # files in front expired during the listing
        if offset != expected:
            raise Corrupt(
                f"{path}: expected the file of offset {expected} next, found {offset}",
                path=path,
                offset=expected,
            )
        expected += size
    return FileRun(size, start, expected)


def refuse_size(path: str, size: int, found: int) -> Corrupt:
    """Return the error for files that all have the same size, but not the configured one."""
    keys = (key for folder, key in _SIZE_KEYS.items() if f"/{folder}/" in path)
    key = next(keys, "mappedFileSizeCommitLog")
    return Corrupt(
        f"{path}: expected a file of {size} bytes, found {found}. If the store was written with "
        f"this size, set {key}={found} in broker.conf",
        path=path,
    )
