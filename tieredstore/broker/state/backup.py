"""Backups of `config/`: one file with everything except the tier's metadata."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_archive import FileArchive, Manifest, pack_files, unpack_files
from tieredstore.disk.file_operations import (
    FILES,
    SECRET_FILE_MODE,
    SECRET_FOLDER_MODE,
    cut_zeros,
    find_file_mode,
)
from tieredstore.errors import Corrupt, Invalid

VERSION: Final = 1
FILE_NAME: Final = "tieredstoreFormat.json"


class _Format(msgspec.Struct):
    version: int


def check_format(folder: Path) -> None:
    """Check the format version of a folder, and write it if missing. Blocks. Raises Corrupt or
    Unavailable, and Invalid for a folder of a newer version of this project."""
    path = folder / FILE_NAME
    backup = path.with_name(f"{FILE_NAME}.bak")
    with wrap_os_errors("read", path):
        data = path.read_bytes() if path.exists() else b""
        kept = backup.read_bytes() if backup.exists() else b""
    found = _find_version(data)
    if found is None and data and cut_zeros(data) == data and _find_version(kept) is None:
        raise Corrupt(
            f"{path}: expected a format version, found {data[:40]!r}. Nothing was changed. Restore "
            "config/ from a backup (`tieredstore config restore`), or delete the file when no "
            "newer version of this project has used the folder",
            path=str(path),
        )
    if found is None:
        # Torn, or not written yet. Later versions write the second file too, so without it the
        # version is the first one.
        found = _find_version(kept) or VERSION
        if found <= VERSION:
            with wrap_os_errors("write", path):
                FILES.make_directory(folder, SECRET_FOLDER_MODE)
                FILES.replace_file(path, msgspec.json.encode(_Format(found)), backup=backup)
    if found > VERSION:
        raise Invalid(
            f"{path}: expected format version {VERSION} or older, found {found}: a newer version "
            "of this project wrote it",
            path=str(path),
        )


def _find_version(data: bytes) -> int | None:
    try:
        return msgspec.json.decode(cut_zeros(data), type=_Format).version
    except msgspec.MsgspecError:
        return None


_TIER_METADATA: Final = "tieredStoreMetadata.json"


def list_files(folder: Path) -> list[str]:
    """Return the names of the files in `config/` to back up. Temporary files are omitted, and so is
    the metadata of the tier, which belongs to the tier."""
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
    """Back up a `config/` folder to a file, durably. The broker may be running, because each file
    is read in a consistent state. Raises Invalid for an empty folder, or Unavailable."""
    contents: dict[str, bytes] = {}
    for name in list_files(folder):
        # A file that disappears meanwhile (a finished journal) is not needed.
        with wrap_os_errors("read", folder / name), suppress(FileNotFoundError):
            contents[name] = (folder / name).read_bytes()
    if not contents:
        raise Invalid(f"{folder}: expected files of a broker, found none", path=str(folder))
    manifest, packed = pack_files(contents, VERSION)
    with wrap_os_errors("write", target):
        FILES.replace_file(target, packed, mode=SECRET_FILE_MODE)
    return manifest


def read_backup(source: Path) -> FileArchive:
    """Read and verify a backup. Raises Invalid for a newer version, Corrupt if it is damaged, or
    Unavailable."""
    with wrap_os_errors("read", source):
        data = source.read_bytes()
    try:
        return unpack_files(data, VERSION, str(source))
    except Corrupt as error:
        text = f"{error}. Use another backup of `tieredstore config backup`"
        raise Corrupt(text, path=str(source)) from error


def restore(backup: FileArchive, folder: Path) -> Path | None:
    """Replace the content of a `config/` folder with a backup. No broker may be using the folder.
    Returns the sibling folder with the previous files, or None if there were none. If the process
    ends during the call, repeat it. Raises Unavailable."""
    present = list_files(folder) if folder.is_dir() else []
    kept = folder.with_name(f"{folder.name}.replaced-{time.time_ns() // 1_000_000}")
    with wrap_os_errors("restore", folder):
        FILES.make_directory(folder, SECRET_FOLDER_MODE)
        for name in present:
            FILES.make_directory(kept, SECRET_FOLDER_MODE)
            FILES.make_directory((kept / name).parent, SECRET_FOLDER_MODE)
            (folder / name).rename(kept / name)
        for name, data in backup.contents.items():
            FILES.make_directory((folder / name).parent, SECRET_FOLDER_MODE)
            FILES.replace_file(folder / name, data, mode=find_file_mode(name))
    return kept if present else None
