"""Backups of `config/`: one file with everything in it, but for what the tier's metadata is."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.state.format import VERSION
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid

MANIFEST: Final = "manifest.json"
_DAMAGES: Final = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    KeyError,
    ValueError,
    msgspec.MsgspecError,
)
_TIER_METADATA: Final = "tieredStoreMetadata.json"


class Manifest(msgspec.Struct):
    """What a backup holds. files: name below `config/` to SHA-256 in hex; taken_ms: epoch ms."""

    format_version: int
    taken_ms: int
    files: dict[str, str]


class Backup(NamedTuple):
    """A backup that was read and checked."""

    manifest: Manifest
    contents: dict[str, bytes]


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
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    manifest = Manifest(VERSION, time.time_ns() // 1_000_000, hashes)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in {MANIFEST: msgspec.json.encode(manifest), **contents}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), manifest.taken_ms // 1000
            archive.addfile(member, io.BytesIO(data))
    with wrap_os_errors("write", target):
        FILES.replace_file(target, packed.getvalue())
    return manifest


def read_backup(source: Path) -> Backup:
    """Read a backup, every byte checked. Raises Invalid for one of a newer version, Corrupt for
    what is none, Unavailable."""
    contents: dict[str, bytes] = {}
    with wrap_os_errors("read", source):
        data = source.read_bytes()
    try:
        plain = gzip.decompress(data)  # its checksum is behind all that is in it
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    contents[member.name] = file.read()
        manifest = msgspec.json.decode(contents.pop(MANIFEST), type=Manifest)
    except _DAMAGES as error:
        raise Corrupt(f"{source}: no backup of config/: {error!r}", path=str(source)) from error
    if manifest.format_version > VERSION:
        raise Invalid(
            f"{source}: expected format version {VERSION} or older, found "
            f"{manifest.format_version}",
            path=str(source),
        )
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    if hashes != manifest.files or any(not _is_inside(name) for name in contents):
        raise Corrupt(f"{source}: its files are not those of its manifest", path=str(source))
    return Backup(manifest, contents)


def restore(backup: Backup, folder: Path) -> Path | None:
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


def _is_inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts
