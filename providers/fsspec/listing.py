"""Listing an fsspec filesystem so that what cannot be listed is an error and never missing.

`find` of fsspec's base class walks folder by folder and leaves out, without a word, every folder
below the first whose listing fails. It is used only where a filesystem has a `find` of its own
(one flat listing); elsewhere folders are walked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from tieredstore.errors import Invalid

_TIME_FIELDS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


def has_flat_find(filesystem: AbstractFileSystem) -> bool:
    """Tell whether `find` is the filesystem's own and not the base class's walk."""
    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find  # noqa: SLF001 - what subclasses override
    return kind.find is not AbstractFileSystem.find


def list_files(filesystem: AbstractFileSystem, folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield fsspec's details of each file below a folder, in any order; none when it is not there.

    Raises what the filesystem raises, and Invalid when the bucket itself is missing.
    """
    if not has_flat_find(filesystem):
        yield from _walk(filesystem, folder, is_top=True)
        return
    try:
        found = filesystem.find(folder, detail=True, withdirs=False)
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


def _walk(
    filesystem: AbstractFileSystem, folder: str, *, is_top: bool = False
) -> Iterator[Mapping[str, Any]]:
    try:
        entries = filesystem.ls(folder, detail=True)
    except FileNotFoundError:
        if is_top and filesystem.exists(folder):
            raise Invalid(f"{folder}: is there and cannot be listed") from None
        return  # deleted meanwhile
    for details in entries:
        name = str(details["name"])
        if details["type"] == "directory":
            yield from _walk(filesystem, name)
        elif name.strip("/") == folder.strip("/"):
            raise Invalid(f"{folder}: expected a folder, found a file")
        elif details["type"] == "file":
            yield details


def require_bucket(filesystem: AbstractFileSystem, folder: str) -> None:
    """Raise Invalid where it is the bucket that is not there: an empty answer may mean that."""
    bucket = folder.strip("/").split("/", 1)[0]
    if isinstance(filesystem, AsyncFileSystem) and bucket and not filesystem.exists(bucket):
        raise Invalid(f"{bucket}: no such bucket, or no permission to see it")


def parse_modified_ms(details: Mapping[str, Any]) -> int:
    """Return when an object was made, epoch ms by the server's clock; 0 when the details do not
    tell."""
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
