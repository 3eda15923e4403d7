"""Atomic writes of whole objects to an fsspec filesystem. fsspec does not define the result of an
interrupted write, so this module uses a safe method for each supported filesystem. Tiers on all
other filesystems are read-only."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Protocol

from fsspec.spec import AbstractFileSystem

from tieredstore.contracts.segment import Buffer
from tieredstore.disk.user_folders import require_temporary_folder
from tieredstore.errors import Invalid
from tieredstore.providers.fsspec.listing import list_files, parse_modified_ms

MAX_PUT_BYTES = 64 << 20
"""Maximum size of an object that is built in memory. A larger object is first written to a file on
the local disk."""
UPLOAD_MARK = ".upload-"
"""Prefix of the file names of writes in progress."""

_METADATA_OPTIONS: Mapping[str, str] = {"s3": "Metadata", "s3a": "Metadata"}
"""Keyword argument with which a filesystem sets the user metadata of an object, by protocol."""
_CREATING = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Protocols whose packages turn `mode="create"` into a conditional request."""
_OBJECT_STORES = _CREATING | {"oss", "oci", "obs", "tos", "cos"}
_LOCAL = frozenset({"file", "local"})


class Writes(Protocol):
    def put(
        self, path: str, pieces: Iterable[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> bool:
        """Create an object from `pieces`, which is iterated only once. Returns False if the object
        exists."""

    def metadata(self, path: str) -> Mapping[str, str] | None:
        """Return the metadata that was passed to `put`, or None if the filesystem stores none."""

    def abort(self, folder: str, prefix: str, older_than_ms: int) -> int:
        """Remove unfinished writes below `folder`, at paths that begin with `prefix`."""


def choose_writes(
    filesystem: AbstractFileSystem, protocol: str, *, atomic_writes: bool = False
) -> Writes:
    """Return the safe way to write for a protocol. `atomic_writes`: the caller guarantees that an
    interrupted `pipe_file` or `put_file` leaves nothing behind."""
    if protocol in _LOCAL:
        return RenamedWrites(filesystem)
    if protocol == "memory":
        return PipedWrites(filesystem, creates=True, max_memory_bytes=None)
    if atomic_writes or protocol in _OBJECT_STORES:
        option = _METADATA_OPTIONS.get(protocol)
        return PipedWrites(filesystem, creates=protocol in _CREATING, metadata_option=option)
    return NoWrites(protocol)


@dataclass(eq=False)
class PipedWrites:
    """Writes to object stores. An object appears when its upload is complete.

    `creates`: whether the filesystem supports `mode="create"`. Otherwise this class checks first
    whether the name is free. Neither excludes a second writer, because a server may ignore the
    mode.
    """

    filesystem: AbstractFileSystem
    _: KW_ONLY
    creates: bool
    metadata_option: str | None = None
    max_memory_bytes: int | None = MAX_PUT_BYTES

    def put(
        self, path: str, pieces: Iterable[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> bool:
        options: dict[str, object] = {}
        if self.creates:
            options["mode"] = "create"
        elif self.filesystem.exists(path):
            return False
        if self.metadata_option is not None:
            options[self.metadata_option] = dict(metadata)
        try:
            if self.max_memory_bytes is None or size_bytes <= self.max_memory_bytes:
                self.filesystem.pipe_file(path, b"".join(pieces), **options)
            else:
                with _spool_pieces(pieces) as spool:
                    self.filesystem.put_file(str(spool), path, **options)
        except OSError:
            # Some refused conditions raise another error than FileExistsError.
            if self.filesystem.exists(path):
                return False
            raise
        return True

    def metadata(self, path: str) -> Mapping[str, str] | None:
        if self.metadata_option is None:
            return None
        found: Mapping[str, str] = self.filesystem.metadata(path)
        return found

    def abort(self, folder: str, prefix: str, older_than_ms: int) -> int:
        """Abort the multipart uploads of killed processes, if the filesystem can list them
        (s3fs)."""
        del folder
        if not hasattr(self.filesystem, "list_multipart_uploads"):
            return 0
        bucket, _, key_prefix = prefix.lstrip("/").partition("/")
        count = 0
        for upload in self.filesystem.list_multipart_uploads(bucket):
            begun_ms = parse_modified_ms({"modified": upload.get("Initiated")})
            if upload["Key"].startswith(key_prefix) and begun_ms <= older_than_ms:
                self.filesystem.abort_mpu(bucket, upload["Key"], upload["UploadId"])
                count += 1
        return count


@contextlib.contextmanager
def _spool_pieces(pieces: Iterable[Buffer]) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(
        prefix="tieredstore-", dir=require_temporary_folder()
    ) as spool:
        for piece in pieces:
            spool.write(piece)
        spool.flush()
        yield Path(spool.name)


class RenamedWrites:
    """Writes to local files. A file is written under another name in the same folder, and then
    linked."""

    def __init__(self, filesystem: AbstractFileSystem) -> None:
        self._filesystem = filesystem

    def put(
        self, path: str, pieces: Iterable[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> bool:
        del size_bytes, metadata
        if self._filesystem.exists(path):
            return False
        folder = path.rpartition("/")[0]
        self._filesystem.makedirs(folder, exist_ok=True)
        upload = f"{folder}/{UPLOAD_MARK}{uuid.uuid4().hex}"
        try:
            with self._filesystem.open(upload, "wb") as file:
                for piece in pieces:
                    file.write(piece)
            return self._publish(upload, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.rm_file(upload)

    def _publish(self, upload: str, path: str) -> bool:
        try:
            self._filesystem.link(upload, path)
        except FileExistsError:
            return False
        except OSError:
            # a disk without hard links
            if self._filesystem.exists(path):
                return False
            self._filesystem.mv(upload, path)
        return True

    def metadata(self, path: str) -> Mapping[str, str] | None:
        del path
        return None

    def abort(self, folder: str, prefix: str, older_than_ms: int) -> int:
        count = 0
        for details in list_files(self._filesystem, folder):
            path = str(details["name"])
            is_ours = is_unfinished(path) and path.startswith(prefix)
            if is_ours and parse_modified_ms(details) <= older_than_ms:
                self._filesystem.rm_file(path)
                count += 1
        return count


def is_unfinished(path: str) -> bool:
    """Return whether a file is an unfinished write."""
    return path.rpartition("/")[2].startswith(UPLOAD_MARK)


class NoWrites:
    """Rejects all writes, because an unfinished write might look complete."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def put(
        self, path: str, pieces: Iterable[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> bool:
        del pieces, size_bytes, metadata
        raise Invalid(
            f"{path}: not written: an interrupted write on {self._protocol}:// may leave a part of "
            "an object. Set atomic_writes=true if it leaves nothing",
            path=path,
        )

    def metadata(self, path: str) -> Mapping[str, str] | None:
        del path
        return None

    def abort(self, folder: str, prefix: str, older_than_ms: int) -> int:
        del folder, prefix, older_than_ms
        return 0
