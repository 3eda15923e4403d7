"""Files of a target, written by tasks and by the driver: a local folder, S3, another file system of
pyarrow, or what pyiceberg opens."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pyarrow import fs

from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.exporting.targets.objects import (
    ObjectFiles,
    connect_s3,
    endpoint_of,
    is_hidden,
)
from tieredstore.tier_url import parse_tier_url

OutputStream: TypeAlias = Any
"""A file that is written: pyarrow's, or one with `write`, `tell` and `close`."""
InputFile: TypeAlias = Any
"""A file that is read at random."""

S3_OPTIONS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
    "scheme": "AWS_ALLOW_HTTP",
}
"""Options of a target in S3, named as those of `pyarrow.fs.S3FileSystem`, and delta-rs' names for
them."""


class Folder(Protocol):
    """A folder of a target. Picklable: it holds no connection."""

    @property
    def place(self) -> str:
        """For messages."""

    def connect(self) -> Files:
        """Open the files of the folder. Raises Invalid, Unavailable."""


class Files(Protocol):
    """Files of a folder by their names, which may have slashes. Raise Unavailable.

    is_local: on this machine's disks, where a second try at once mends nothing.
    """

    is_local: bool

    def create(self, name: str) -> OutputStream: ...

    def seal(self, name: str) -> None:
        """Make a file durable that was written and closed."""

    def open(self, name: str) -> InputFile: ...

    def exists(self, name: str) -> bool: ...

    def delete(self, name: str) -> None:
        """Delete a file. No error where there is none."""

    def close(self) -> None: ...


class FolderFiles(Files, Protocol):
    """Files of a folder whose own state is kept there too."""

    def read(self, name: str) -> bytes: ...

    def names(self, folder: str = "") -> list[str]:
        """List what a folder has, files and folders, sorted; nothing where it is missing."""

    def sizes(self) -> dict[str, int]:
        """List all files below with their bytes, by name, sorted; but what is in folders, or has
        names, that begin with `_` or a dot."""

    def move(self, name: str, to: str) -> bool:
        """Move a file, or copy it. Returns False where there is no file of that name (any more)."""

    def sync_folder(self, name: str) -> None: ...

    def delete_folder(self, name: str) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, whole or not at all."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Put a file as `put` does if no file has the name; else return False. Of several at once
        one has True."""


@dataclass(frozen=True, slots=True)
class ArrowFolder:
    """A folder by its URL: `file:///dir`, a path, `s3://bucket/prefix`, what pyarrow opens."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    below: str = ""

    @property
    def place(self) -> str:
        return self.url

    def connect(self) -> FolderFiles:
        below = f"/{self.below}" if self.below else ""
        if self.url.startswith(("s3://", "s3a://")):
            place = parse_tier_url(self.url)
            options = {**place.query, **self.options}
            _require_options(self.url, options, tuple(S3_OPTIONS))
            return ObjectFiles(connect_s3(place.authority, f"{place.path}{below}", options))
        system, root = open_filesystem(self.url, self.options)
        return ArrowFiles(system, f"{root}{below}", self.url)


class ArrowFiles:
    """A folder of this machine, or of a file system of pyarrow."""

    def __init__(self, system: fs.FileSystem, root: str, url: str) -> None:
        self.is_local = isinstance(system, fs.LocalFileSystem)
        self._system = system
        self._root = root
        self._url = url

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def create(self, name: str) -> OutputStream:
        with translate_errors(self._url):
            if self.is_local:
                Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)
            return self._system.open_output_stream(self.path(name))

    def seal(self, name: str) -> None:
        if self.is_local:
            with translate_errors(self._url):
                sync_path(self.path(name))

    def open(self, name: str) -> InputFile:
        with translate_errors(self._url):
            return self._system.open_input_file(self.path(name))

    def read(self, name: str) -> bytes:
        with translate_errors(self._url), self._system.open_input_stream(self.path(name)) as stream:
            data: bytes = stream.read()
            return data

    def exists(self, name: str) -> bool:
        with translate_errors(self._url):
            info = self._system.get_file_info(self.path(name))
        return bool(info.type is not fs.FileType.NotFound)

    def names(self, folder: str = "") -> list[str]:
        place = self.path(folder) if folder else self._root
        with translate_errors(self._url):
            found = self._system.get_file_info(fs.FileSelector(place, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            place = self.path(folder) if folder else self._root
            with translate_errors(self._url):
                infos = self._system.get_file_info(fs.FileSelector(place, allow_not_found=True))
            for info in infos:
                name = f"{folder}/{info.base_name}" if folder else info.base_name
                if is_hidden(info.base_name):
                    continue
                if info.type is fs.FileType.Directory:
                    folders.append(name)
                elif info.type is fs.FileType.File:
                    found[name] = int(info.size)
        return dict(sorted(found.items()))

    def move(self, name: str, to: str) -> bool:
        with translate_errors(self._url):
            try:
                if self.is_local:
                    Path(self.path(to)).parent.mkdir(parents=True, exist_ok=True)
                    Path(self.path(name)).replace(self.path(to))
                else:  # the folder that it is in is removed as a whole
                    self._system.copy_file(self.path(name), self.path(to))
            except FileNotFoundError:
                return False
        return True

    def sync_folder(self, name: str) -> None:
        if self.is_local:
            with translate_errors(self._url):
                sync_folder(self.path(name))

    def delete(self, name: str) -> None:
        with translate_errors(self._url):
            try:
                self._system.delete_file(self.path(name))
            except FileNotFoundError:
                return

    def delete_folder(self, name: str) -> None:
        with translate_errors(self._url):
            try:
                self._system.delete_dir(self.path(name))
            except FileNotFoundError:
                return

    def put(self, name: str, data: bytes) -> None:
        if not self.is_local:
            with (
                translate_errors(self._url),
                self._system.open_output_stream(self.path(name)) as stream,
            ):
                stream.write(data)
            return
        with translate_errors(self._url):
            temporary = self._temporary(name, data)
            temporary.replace(self.path(name))
            sync_folder(temporary.parent)

    def put_new(self, name: str, data: bytes) -> bool:
        if not self.is_local:
            raise Invalid(
                f"{self._url}: plain Parquet needs a place where a file can be made only if it is "
                "not there: file or s3"
            )
        with translate_errors(self._url):
            temporary = self._temporary(name, data)
            try:
                os.link(temporary, self.path(name))
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
            sync_folder(temporary.parent)
        return True

    def close(self) -> None:
        """Do nothing: pyarrow ends its connections itself."""

    def _temporary(self, name: str, data: bytes) -> Path:
        """A synced file beside the one that it shall become, with a name that starts with a dot."""
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        FILES.write_synced(temporary, data)
        return temporary


def open_filesystem(url: str, options: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Return file system and path of a URL that is not S3's. Raises Invalid, Unavailable."""
    if "://" not in url:
        _require_options(url, options, ())
        return fs.LocalFileSystem(), str(Path(url).absolute())
    place = parse_tier_url(url)
    given = {**place.query, **options}
    if place.scheme == "file":
        _require_options(url, given, ())
        return fs.LocalFileSystem(), str(Path(place.path).absolute())
    _require_options(url, given, ())
    try:
        system, path = fs.FileSystem.from_uri(place.quoted)
    except (OSError, ValueError) as error:
        raise Invalid(f"{place}: {error}") from error
    return system, path.rstrip("/")


def delta_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the same options for delta-rs."""
    given = {**parse_tier_url(url).query, **options} if "://" in url else dict(options)
    found = {S3_OPTIONS[name]: value for name, value in given.items()}
    if "AWS_ALLOW_HTTP" in found:
        found["AWS_ALLOW_HTTP"] = str(found["AWS_ALLOW_HTTP"] == "http").lower()
    if "AWS_ENDPOINT_URL" in found:
        found["AWS_ENDPOINT_URL"] = endpoint_of(given)
    return found


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Raise what the file system raises as Unavailable with the target's name."""
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        raise Unavailable(f"{url.partition('?')[0]}: {text}", path=url) from error


def _require_options(url: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        names = ", ".join(known) or "none"
        raise Invalid(
            f"{url.partition('?')[0]}: no target option {unknown[0]!r}; there are: {names}"
        )
