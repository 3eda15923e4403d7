"""Backups of `config/`: one file with everything in it, but for what the tier's metadata is."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tieredstore.broker.state.format import VERSION
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_archive import FileArchive, Manifest, pack_files, unpack_files
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Invalid

_TIER_METADATA: Final = "tieredStoreMetadata.json"


def list_files(folder: Path) -> list[str]:
    """List what a backup of a `config/` has: not what is being written, and not the metadata of the
    tier, which is the tier's and goes on with it."""
    with wrap_os_errors("list", folder):
        names = (
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        return sorted(
            name
            for name in names
            if not name.startswith(_TIER_METADATA) and not name.endswith(".tmp")
        )


def back_up(folder: Path, target: Path) -> Manifest:
    """Write a backup of a `config/` to a file, on disk when this returns. The broker may run: each
    file is as it was at one moment. Raises Invalid for a folder with nothing in it, Unavailable."""
    contents: dict[str, bytes] = {}
    for name in list_files(folder):
        # What goes away meanwhile (a journal that is done with) is not needed.
        with wrap_os_errors("read", folder / name), suppress(FileNotFoundError):
            contents[name] = (folder / name).read_bytes()
    if not contents:
        raise Invalid(f"{folder}: expected files of a broker, found none", path=str(folder))
    manifest, packed = pack_files(contents, VERSION)
    with wrap_os_errors("write", target):
        FILES.replace_file(target, packed)
    return manifest


def read_backup(source: Path) -> FileArchive:
    """Read a backup, every byte checked. Raises Invalid for one of a newer version, Corrupt for
    what is none, Unavailable."""
    with wrap_os_errors("read", source):
        data = source.read_bytes()
    return unpack_files(data, VERSION, str(source))


def restore(backup: FileArchive, folder: Path) -> Path | None:
    """Make what a backup has the contents of a `config/` that nobody uses. Returns the folder
    beside it in which the files that were there are kept; None where there were none. A call that
    was killed can be made again. Raises Unavailable."""
    present = list_files(folder) if folder.is_dir() else []
    kept = folder.with_name(f"{folder.name}.replaced-{time.time_ns() // 1_000_000}")
    with wrap_os_errors("restore", folder):
        for name in present:
            FILES.make_directory((kept / name).parent)
            (folder / name).rename(kept / name)
        for name, data in backup.contents.items():
            FILES.make_directory((folder / name).parent)
            FILES.replace_file(folder / name, data)
    return kept if present else None
