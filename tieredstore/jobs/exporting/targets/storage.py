"""Files of a target: in a local folder, in S3, in another file system of pyarrow, or behind
pyiceberg's file access. Tasks and the driver write them."""

from __future__ import annotations

import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from pyarrow import fs

from tieredstore.disk.errors import classify_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.errors import Expired, Invalid, Refused, Unavailable
from tieredstore.jobs.exporting.targets.objects import (
    ObjectFiles,
    connect_s3,
    endpoint_of,
    is_hidden,
)
from tieredstore.tier_url import parse_tier_url

OutputStream: TypeAlias = Any
"""A file open for writing: pyarrow's, or an object with `write`, `tell` and `close`."""
InputFile: TypeAlias = Any
"""A file open for random reads."""

MAX_ATTEMPTS = 3
_Outcome = TypeVar("_Outcome")
_log = logging.getLogger(__name__)

S3_OPTIONS = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
    "scheme": "AWS_ALLOW_HTTP",
}
"""Options of a target in S3. The key is the name in `pyarrow.fs.S3FileSystem`, the value is the
name in delta-rs."""


class Folder(Protocol):
    """Folder of a target. Picklable, because it has no connection."""

    @property
    def place(self) -> str:
        """Location of the folder, for messages."""

    def connect(self) -> Files:
        """Open the files of the folder. Raises Invalid, Unavailable."""


class Files(Protocol):
    """Files of a folder by name. Names may have slashes. Methods raise Unavailable. `is_local`:
    whether the files are on a local disk, where an immediate retry is useless."""

    is_local: bool

    def create(self, name: str) -> OutputStream: ...

    def seal(self, name: str) -> None:
        """Make a written and closed file durable."""

    def open(self, name: str) -> InputFile: ...

    def exists(self, name: str) -> bool: ...

    def delete(self, name: str) -> None:
        """Delete a file. A missing file is no error."""

    def close(self) -> None: ...


class FolderFiles(Files, Protocol):
    """Files of a folder that also contains the target's state."""

    def read(self, name: str) -> bytes: ...

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of files and folders in a folder. Empty if the folder is
        missing."""

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all files in the folder and its subfolders, sorted by name.
        Names that begin with `_` or a dot are omitted."""

    def move(self, name: str, to: str) -> bool:
        """Move a file, or copy it. Returns False if the file is missing."""

    def sync_folder(self, name: str) -> None: ...

    def delete_folder(self, name: str) -> None: ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, atomically."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a small file atomically, if the name is free. Only one of several concurrent calls
        returns True."""


@dataclass(frozen=True, slots=True)
class ArrowFolder:
    """A folder by its URL: `file:///dir`, a path, `s3://bucket/prefix`, or another URL of
    pyarrow."""

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
    """Files of a folder on this machine, or in a file system of pyarrow."""

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
        return sorted(info.base_name for info in self._list(folder))

    def _list(self, folder: str) -> list[fs.FileInfo]:
        place = self.path(folder) if folder else self._root
        with translate_errors(self._url):
            return list(self._system.get_file_info(fs.FileSelector(place, allow_not_found=True)))

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            for info in self._list(folder):
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
                else:  # The folder that the source is in is removed as a whole.
                    self._system.copy_file(self.path(name), self.path(to))
            except FileNotFoundError:
                return False
        return True

    def sync_folder(self, name: str) -> None:
        if self.is_local:
            with translate_errors(self._url):
                sync_folder(self.path(name))

    def delete(self, name: str) -> None:
        with translate_errors(self._url), suppress(FileNotFoundError):
            self._system.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        with translate_errors(self._url), suppress(FileNotFoundError):
            self._system.delete_dir(self.path(name))

    def put(self, name: str, data: bytes) -> None:
        with translate_errors(self._url):
            if not self.is_local:
                with self._system.open_output_stream(self.path(name)) as stream:
                    stream.write(data)
                return
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
        """No-op: pyarrow closes its connections itself."""

    def _temporary(self, name: str, data: bytes) -> Path:
        """Write a synced temporary file in the same folder, with a hidden name."""
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        FILES.write_synced(temporary, data)
        return temporary


def open_filesystem(url: str, options: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL other than S3, and the path in it. Raises Invalid,
    Unavailable."""
    place = parse_tier_url(url) if "://" in url else None
    _require_options(url, {**(place.query if place else {}), **options}, ())
    if place is None or place.scheme == "file":
        return fs.LocalFileSystem(), str(Path(place.path if place else url).absolute())
    try:
        system, path = fs.FileSystem.from_uri(place.quoted)
    except (OSError, ValueError) as error:
        raise Invalid(f"{place}: {error}") from error
    return system, path.rstrip("/")


def delta_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the folder for delta-rs."""
    given = {**parse_tier_url(url).query, **options} if "://" in url else dict(options)
    found = {S3_OPTIONS[name]: value for name, value in given.items()}
    if "AWS_ALLOW_HTTP" in found:
        found["AWS_ALLOW_HTTP"] = str(found["AWS_ALLOW_HTTP"] == "http").lower()
    if "AWS_ENDPOINT_URL" in found:
        found["AWS_ENDPOINT_URL"] = endpoint_of(given)
    return found


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Translate errors of the file system and add the target's name: Invalid for lasting errors,
    such as a name that is too long, otherwise Unavailable."""
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        kind = classify_os_error(error)
        raise kind(f"{url.partition('?')[0]}: {text}", path=url) from error


def _require_options(url: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        names = ", ".join(known) or "none"
        raise Invalid(
            f"{url.partition('?')[0]}: no target option {unknown[0]!r}. Known are: {names}"
        )


def try_again(folder: Folder, key: str, attempt_once: Callable[[Files], _Outcome]) -> _Outcome:
    """Return the outcome of the task `key`. After Unavailable it is retried, up to `MAX_ATTEMPTS`
    attempts, because the target's client retries only some temporary errors. Each attempt writes
    its own files. Errors of a local target, and Expired, are raised immediately."""
    with closing(folder.connect()) as files:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return attempt_once(files)
            except Unavailable as error:
                if (
                    files.is_local
                    or isinstance(error, Expired | Refused)
                    or attempt == MAX_ATTEMPTS
                ):
                    raise
                _log.warning("task %s of the export is tried again: %s", key, error)
                time.sleep(attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError


def delete_files(folder: Folder, names: Iterable[str]) -> None:
    """Delete files of a folder. Raises Unavailable."""
    with closing(folder.connect()) as files:
        for name in names:
            files.delete(name)
