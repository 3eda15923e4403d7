"""ObjectClient: what a chunk log needs from an object store (`docs/formats/chunk-log.md`).

Objects are immutable: made once by a conditional create, read by range, deleted. Keys are relative
to the tier's own prefix. Calls block and are thread-safe; library errors never leak past a client.

Unavailable means that the outcome is not known: a write may have been applied. Busy, only of a
conditional write, means that it surely was not applied and may be tried again (409 of an object
store, a refusal before anything was sent). Invalid means that trying again is of no use: no such
bucket, no permission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tieredstore.contracts.segment import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a HEAD saw it.

    modified_ms: by the server's clock; metadata: None in a listing, which does not tell it.
    """

    key: str
    size_bytes: int
    modified_ms: int = 0
    metadata: Mapping[str, str] | None = None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part that the server copies from an object of the same tier."""

    key: str
    position: int
    length: int


Part: TypeAlias = CopiedPart | Sequence[Buffer]
"""A copied part, or bytes to be sent: the concatenation of the buffers."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What the object store allows, bytes. `conditional`: whether it honours create-if-absent
    (without it nothing fences a second writer). `exclusive`: whether it is promised that of several
    such creates at the same time one alone succeeds. `condition`: what it is asked with, for
    messages. `concurrent_requests`: reads that it is sent at once.
    """

    conditional: bool = True
    exclusive: bool = True
    min_part_bytes: int = 5 << 20
    max_part_bytes: int = 5 << 30
    max_put_bytes: int = 5 << 30
    max_parts: int = 10_000
    condition: str = "If-None-Match"
    concurrent_requests: int = 16


class ObjectClient(Protocol):
    """An object store, below the prefix of one tier."""

    @property
    def url(self) -> str:
        """For messages to people; never with a secret."""
        ...

    @property
    def limits(self) -> ClientLimits: ...

    def now_ms(self) -> int:
        """Return the server's clock, epoch milliseconds, as far as its answers told it."""
        ...

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        """Make an object of the concatenation of `buffers`. False when the key is taken (412)."""
        ...

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        """Make an object out of parts, by a multipart upload that is completed if absent.

        All parts but the last have at least `limits.min_part_bytes`. False when the key is taken;
        the upload is then aborted. Raises Unavailable also when a copied object is not there.
        """
        ...

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        """Read the bytes of [position, position + length) that the object has, fewer at its end;
        None when there is no such object (404). A body cut short on its way raises Unavailable."""
        ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys start with `prefix`, in order of their UTF-8 bytes, page by
        page. A page that fails raises Unavailable; it never looks like the end."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Raises Unavailable when one may still be there. Idempotent."""
        ...

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        """Abort multipart uploads begun at or before `older_than_ms` (server's clock); how many."""
        ...

    def close(self) -> None: ...
