"""Fixed-size files named by the offset of their first byte: listing and checking a directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Corrupt, Invalid

NAME_DIGITS = 20


def file_name(offset: int) -> str:
    """Make the name of the file whose first byte has this offset."""
    return f"{offset:0{NAME_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class FileRun:
    """Files of one size without a gap: offsets [start, end), `file_size` bytes each.

    Empty (start == end) when the directory holds none; file_size is 0 then unless it was given.
    """

    file_size: int
    start: int
    end: int

    @property
    def offsets(self) -> range:
        return range(self.start, self.end, self.file_size) if self.end > self.start else range(0)


def list_files(
    directory: Path, *, file_size: int | None, unit_size: int = 1, delete_empty_last: bool = False
) -> FileRun:
    """Check a directory of files and describe it.

    file_size: what each file must have (bytes), None to take it from the first file. unit_size:
    what it must be a multiple of. A last file of length 0 was never used: it is skipped, and
    deleted when `delete_empty_last` (an owner does that). Sub-directories are skipped. Raises
    Corrupt for a wrong length, a gap or an overlap, Invalid for a foreign name.
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
                        "digits; move it elsewhere if it is not the store's",
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
            try:
                empty.unlink()
            except OSError as error:
                raise translate_os_error(error, "delete the empty file", empty) from error
    if not found:
        return FileRun(file_size or 0, 0, 0)
    size = file_size or found[0][1]
    start = expected = found[0][0]
    for offset, length in found:
        path = f"{directory}/{file_name(offset)}"
        if length != size or size == 0 or size % unit_size:
            raise Corrupt(f"{path}: expected a file of {size} bytes, found {length}", path=path)
        if offset != expected and not (directory / file_name(expected - size)).exists():
            start = expected = offset  # those in front expired while they were listed
        if offset != expected:
            raise Corrupt(
                f"{path}: expected the file of offset {expected} next, found {offset}",
                path=path,
                offset=expected,
            )
        expected += size
    return FileRun(size, start, expected)
