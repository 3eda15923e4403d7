"""Object storage: the object store client that providers and jobs share. Objects are immutable.
They are created by a conditional put, read by range, and deleted. Keys are relative to the prefix
of the tier. Calls block and are thread-safe.

A client never raises the errors of its library. Unavailable means that the outcome is unknown: a
write may have been applied. Busy is raised only by conditional writes. The write was certainly not
applied and may be retried (status 409, or a refusal before anything was sent). Invalid means that a
retry is useless: the bucket does not exist, or a permission is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tieredstore.contracts.segment import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Object described by a listing or a HEAD response. `modified_ms`: last modification by the
    server's clock (epoch ms). `metadata`: None for a listed object, because listings do not include
    metadata."""

    key: str
    size_bytes: int
    modified_ms: int = 0
    metadata: Mapping[str, str] | None = None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Part of an upload that the server copies from another object of the tier."""

    key: str
    position: int
    length: int


Part: TypeAlias = CopiedPart | Sequence[Buffer]
"""Part of an upload: a part copied by the server, or buffers to send as one part."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of an object store, in bytes. `conditional`: True if the store supports
    create-if-absent. Otherwise a second writer is not fenced. `exclusive`: True if the store
    guarantees that only one of several concurrent creates succeeds. `condition`: the condition of
    conditional requests, for error messages. `concurrent_requests`: maximum number of concurrent
    reads."""

    conditional: bool = True
    exclusive: bool = True
    min_part_bytes: int = 5 << 20
    max_part_bytes: int = 5 << 30
    max_put_bytes: int = 5 << 30
    max_parts: int = 10_000
    condition: str = "If-None-Match"
    concurrent_requests: int = 16


class ObjectClient(Protocol):
    """Client of an object store, limited to the prefix of one tier."""

    @property
    def url(self) -> str:
        """URL of the tier without secrets, for error messages."""

    @property
    def limits(self) -> ClientLimits: ...

    def now_ms(self) -> int:
        """Return the server's time (epoch ms), estimated from response headers."""

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        """Create an object from the concatenated `buffers`. Returns False if the key exists (status
        412)."""

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        """Create an object from parts with a multipart upload. Every part except the last has at
        least `limits.min_part_bytes`. If the key already exists, aborts the upload and returns
        False. Raises Unavailable, also if a copied object is missing."""

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        """Read the bytes [position, position + length), or fewer at the end of the object. Returns
        None if the object is missing (status 404). A truncated response raises Unavailable."""

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys start with `prefix`, in order of their UTF-8 bytes, page by
        page. Raises Unavailable if a page fails, so a failure never looks like the end."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Idempotent. Raises Unavailable if any of them may still exist."""

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        """Abort multipart uploads that began at or before `older_than_ms` by the server's clock.
        Returns how many were aborted."""

    def close(self) -> None: ...


class FolderClient(ObjectClient, Protocol):
    """Client of an object store that can also list folders and copy objects."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the objects and folders directly in a folder. Raises Unavailable or
        Invalid."""

    def copy(self, key: str, to: str) -> bool:
        """Copy an object of up to 5 GiB, overwriting an existing one. Returns False if the source
        does not exist. Raises Unavailable or Invalid."""
