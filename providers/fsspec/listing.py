"""Listing of an fsspec filesystem. A folder that cannot be listed is an error. `find` of fsspec's
base class silently skips such a folder. This module therefore calls `find` only if the filesystem
has its own, and otherwise walks the folders itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from tieredstore.errors import Invalid

_FIND_TRIES = 10
_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


def has_flat_find(filesystem: AbstractFileSystem) -> bool:
    """Return whether the filesystem overrides `find`, instead of inheriting the walk of the base
    class."""
    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find  # noqa: SLF001 - what subclasses override
    return kind.find is not AbstractFileSystem.find


def list_files(filesystem: AbstractFileSystem, folder: str) -> Iterator[Mapping[str, object]]:
    """Yield fsspec's details of each file below a folder, in any order. A missing folder is empty.
    Raises the errors of the filesystem, and Invalid if the bucket is missing."""
    if not has_flat_find(filesystem):
        yield from _walk(filesystem, folder, is_top=True)
        return
    try:
        found = _find(filesystem, folder)
    except FileNotFoundError:
        found = {}
    if not found:
        require_bucket(filesystem, folder)
        return
    if not isinstance(found, Mapping):
        raise Invalid(f"{folder}: expected a folder, found a file")
    for details in found.values():
        if details.get("type") == "file":
            yield details


def _find(filesystem: AbstractFileSystem, folder: str) -> object:
    """List with the filesystem's own `find`. Retry if it fails because another thread has added a
    file to fsspec's memory filesystem."""
    for _ in range(_FIND_TRIES):
        with suppress(RuntimeError):
            return filesystem.find(folder, detail=True, withdirs=False)
    return filesystem.find(folder, detail=True, withdirs=False)


def _walk(
    filesystem: AbstractFileSystem, folder: str, *, is_top: bool = False
) -> Iterator[Mapping[str, object]]:
    try:
        entries = filesystem.ls(folder, detail=True)
    except FileNotFoundError:
        if is_top and filesystem.exists(folder):
            raise Invalid(f"{folder}: is there and cannot be listed") from None
        return  # deleted during the walk
    for details in entries:
        name = str(details["name"])
        if details["type"] == "directory":
            yield from _walk(filesystem, name)
        elif name.strip("/") == folder.strip("/"):
            raise Invalid(f"{folder}: expected a folder, found a file")
        elif details["type"] == "file":
            yield details


def require_bucket(filesystem: AbstractFileSystem, folder: str) -> None:
    """Raise Invalid if the bucket does not exist. Call this after an empty listing, because a
    missing bucket also lists as empty."""
    bucket = folder.strip("/").split("/", 1)[0]
    if isinstance(filesystem, AsyncFileSystem) and bucket and not filesystem.exists(bucket):
        raise Invalid(f"{bucket}: no such bucket, or no permission to see it")


def parse_modified_ms(details: Mapping[str, object]) -> int:
    """Return the creation time of an object by the server's clock (epoch ms), or 0 if it is
    unknown."""
    for field in _TIME_FIELDS:
        value = details.get(field)
        if isinstance(value, str) and value:
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        if isinstance(value, (int, float)) and value:
            return int(value * 1000)
    return 0
