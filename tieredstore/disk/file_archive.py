"""Archive of several small files with a hash of each, so that readers can verify every byte."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

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


class Manifest(msgspec.Struct):
    """Table of contents of an archive. `files`: SHA-256 in hex, by file name. `taken_ms`: time of
    the archive (epoch ms). `notes`: further values of the writer."""

    format_version: int
    taken_ms: int
    files: dict[str, str]
    notes: dict[str, str] = {}


class FileArchive(NamedTuple):
    """Verified archive. `contents`: bytes by file name, relative to the archived folder."""

    manifest: Manifest
    contents: dict[str, bytes]


def hash_files(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of each file, in hex."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def pack_files(
    contents: Mapping[str, bytes],
    version: int,
    *,
    taken_ms: int | None = None,
    notes: Mapping[str, str] | None = None,
) -> tuple[Manifest, bytes]:
    """Pack files into an archive. Returns its manifest and its bytes. `version`: format version of
    the files. `taken_ms`: epoch ms (default: now)."""
    if taken_ms is None:
        taken_ms = time.time_ns() // 1_000_000
    manifest = Manifest(version, taken_ms, hash_files(contents), dict(notes or {}))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
        for name, data in {MANIFEST: msgspec.json.encode(manifest), **contents}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), taken_ms // 1000
            archive.addfile(member, io.BytesIO(data))
    return manifest, packed.getvalue()


def unpack_files(data: bytes, version: int, origin: str) -> FileArchive:
    """Read an archive and verify every byte. `origin`: location of the archive, for errors. Raises
    Invalid for a version above `version`, and Corrupt for a damaged or truncated archive."""
    contents: dict[str, bytes] = {}
    try:
        plain = gzip.decompress(data)  # its checksum comes last
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    contents[member.name] = file.read()
        manifest = msgspec.json.decode(contents.pop(MANIFEST), type=Manifest)
    except _DAMAGES as error:
        raise Corrupt(f"{origin}: no whole backup: {error!r}", path=origin) from error
    if manifest.format_version > version:
        raise Invalid(
            f"{origin}: expected format version {version} or older, found "
            f"{manifest.format_version}",
            path=origin,
        )
    if hash_files(contents) != manifest.files or not all(map(_is_inside, contents)):
        raise Corrupt(f"{origin}: its files are not those of its manifest", path=origin)
    return FileArchive(manifest, contents)


def _is_inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts
