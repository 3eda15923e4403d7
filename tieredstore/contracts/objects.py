"""Object storage: the client of an object store that providers and jobs share. Objects are
immutable. They are created once by a conditional create, read by range, and deleted. Keys are
relative to the tier's own prefix. Calls block and are thread-safe. A client never raises the errors
of its library. Unavailable means that the outcome is unknown: a write may have been applied. Busy,
only of a conditional write, means that the write was certainly not applied and may be retried
(status 409, or a refusal before anything was sent). Invalid means that a retry is useless: the
bucket does not exist, or the permission is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tieredstore.contracts.segment import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Object as described by a listing or a HEAD response. `modified_ms`: time of the last change
    by the server's clock (epoch ms). `metadata`: None in a listing, because listings contain no
    metadata."""

    key: str
    size_bytes: int
    modified_ms: int = 0
    metadata: Mapping[str, str] | None = None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Part of an upload that the server copies from an object of the same tier."""

    key: str
    position: int
    length: int


Part: TypeAlias = CopiedPart | Sequence[Buffer]
"""Part of an upload: a part that the server copies, or buffers that are sent as one."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of the object store, in bytes. `conditional`: whether the store supports
    create-if-absent. Without create-if-absent a second writer is not fenced. `exclusive`: whether
    the store guarantees that only one of several concurrent creates succeeds. `condition`: the
    condition of a conditional request, for error messages. `concurrent_requests`: maximum number of
    concurrent reads."""

    conditional: bool = True
    exclusive: bool = True
    min_part_bytes: int = 5 << 20
    max_part_bytes: int = 5 << 30
    max_put_bytes: int = 5 << 30
    max_parts: int = 10_000
    condition: str = "If-None-Match"
    concurrent_requests: int = 16


class ObjectClient(Protocol):
    """Client of an object store, below the prefix of one tier."""

    @property
    def url(self) -> str:
        """URL of the tier without secrets, for error messages."""

    @property
    def limits(self) -> ClientLimits: ...

    def now_ms(self) -> int:
        """Return the server's time (epoch ms), estimated from its responses."""

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        """Create an object from the concatenation of `buffers`. Returns False if the key exists
        (status 412)."""

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        """Create an object from parts, by a multipart upload. The upload is completed only if the
        key does not exist. All parts but the last have at least `limits.min_part_bytes`. If the key
        exists, the upload is aborted and False returned. Raises Unavailable also if a copied object
        is missing."""

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        """Read the bytes [position, position + length), or fewer at the end of the object. Returns
        None if the object is missing (status 404). A truncated response raises Unavailable."""

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys start with `prefix`, in order of their UTF-8 bytes, page by
        page. A failed page raises Unavailable, so it is never mistaken for the end."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Raises Unavailable if an object may still exist. Idempotent."""

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        """Abort multipart uploads that began at or before `older_than_ms` (server's clock). Returns
        the number of aborted uploads."""

    def close(self) -> None: ...


class FolderClient(ObjectClient, Protocol):
    """Client of an object store that can also list folders and copy objects."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of objects and folders directly below a folder. Raises Unavailable,
        Invalid."""

    def copy(self, key: str, to: str) -> bool:
        """Copy an object of up to 5 GiB, and overwrite an existing object. Returns False if the
        source does not exist. Raises Unavailable, Invalid."""
