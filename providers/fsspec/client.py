"""FsspecClient: objects of a chunk log on any fsspec filesystem (`docs/fsspec.md`).

Only what fsspec has on every filesystem: whole objects, ranges, `info`, listings. Never append,
never a listing cache. No portable conditional create: `limits.conditional` is false, and whoever
writes must be alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import fsspec.core
from fsspec.spec import AbstractFileSystem

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.checks import total_bytes
from tieredstore.providers.chunks.client import ClientLimits, CopiedPart, ObjectInfo, Part
from tieredstore.providers.fsspec.errors import ABSENT, ErrorMapper, find_secrets
from tieredstore.providers.fsspec.listing import list_files, parse_modified_ms, require_bucket
from tieredstore.providers.fsspec.writes import MAX_PUT_BYTES, choose_writes, is_unfinished

COPY_PIECE_BYTES = 8 << 20
"""Bytes of a copied part that are in memory at a time."""

_LIMITS = ClientLimits(
    conditional=False, min_part_bytes=1, max_part_bytes=5 << 30, max_put_bytes=MAX_PUT_BYTES
)


class FsspecClient:
    """An ObjectClient below `root` (a path or a bucket with a prefix) of a filesystem.

    options: storage options of the filesystem; they never show in a URL or a message.
    atomic_writes: see `fsspec_writes.choose_writes`. Raises Invalid when the protocol is unknown or
    its package is missing.
    """

    def __init__(
        self,
        protocol: str,
        root: str,
        options: Mapping[str, Any] | None = None,
        *,
        atomic_writes: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._url = f"{protocol}://{root.rstrip('/')}"
        self._clock = clock
        self._errors = ErrorMapper(self._url, find_secrets(options or {}))
        self._filesystem = _filesystem(protocol, options or {}, self._errors)
        with self._errors.translate_errors("open", ""):
            self._root = str(fsspec.core.strip_protocol(self._url)).rstrip("/")
        self._writes = choose_writes(self._filesystem, protocol, atomic_writes=atomic_writes)

    @property
    def url(self) -> str:
        return self._url

    @property
    def limits(self) -> ClientLimits:
        return _LIMITS

    def now_ms(self) -> int:
        """Return this machine's clock, epoch milliseconds: fsspec does not tell the server's."""
        return self._clock.now_ms()

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        """Put an object. Not atomic: of two writers at once both may be told True, and the later
        one's bytes stay."""
        return self._put_object(key, buffers, total_bytes(buffers), metadata)

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        """Compose an object. The bytes of copied parts travel through this process, a piece at a
        time."""
        size = sum(
            part.length if isinstance(part, CopiedPart) else total_bytes(part) for part in parts
        )
        return self._put_object(key, self._pieces(parts), size, metadata)

    def _put_object(
        self, key: str, pieces: Iterable[Buffer], size_bytes: int, metadata: Mapping[str, str]
    ) -> bool:
        path = self._path(key)
        with self._errors.translate_errors("write", key):
            try:
                return self._writes.put(path, pieces, size_bytes, metadata)
            except FileNotFoundError:
                require_bucket(self._filesystem, path)
                raise

    def _pieces(self, parts: Sequence[Part]) -> Iterator[Buffer]:
        for part in parts:
            if not isinstance(part, CopiedPart):
                yield from part
                continue
            end = part.position + part.length
            for position in range(part.position, end, COPY_PIECE_BYTES):
                length = min(COPY_PIECE_BYTES, end - position)
                piece = self.get_range(part.key, position, length)
                if piece is None or len(piece) != length:
                    found = "no object" if piece is None else f"{len(piece)} bytes"
                    raise Unavailable(
                        f"{self._url}/{part.key}: copy: expected {length} bytes at {position}, "
                        f"found {found}",
                        path=part.key,
                        offset=position,
                    )
                yield piece

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        path = self._path(key)
        if length > 0:
            try:
                with self._errors.translate_errors("read", key, ABSENT):
                    data = bytes(
                        self._filesystem.cat_file(path, start=position, end=position + length)
                    )
            except ABSENT:
                return None
            except Unavailable:
                # Behind the end some filesystems fail where others answer nothing.
                info = self.head(key)
                if info is None or position < info.size_bytes:
                    raise
                return b""
            if len(data) == length:
                return data
        else:
            data = b""
        info = self.head(key)
        if info is None:
            return None
        expected = max(0, min(length, info.size_bytes - position))
        if len(data) != expected:
            raise Unavailable(
                f"{self._url}/{key}: read: expected {expected} bytes at {position}, found "
                f"{len(data)}",
                path=key,
                offset=position,
            )
        return data

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            with self._errors.translate_errors("look up", key, ABSENT):
                details = self._filesystem.info(path)
                if details["type"] != "file":
                    return None
                metadata = self._writes.metadata(path)
        except ABSENT:
            return None
        return self._info(key, details, metadata)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the objects of the folder that `prefix` is in at once and put them in order: fsspec
        has no pages."""
        folder = prefix.rpartition("/")[0]
        with self._errors.translate_errors("list", prefix):
            found = {
                self._key(str(details["name"])): details
                for details in list_files(self._filesystem, self._path(folder))
            }
        keys = [
            key
            for key in found
            if key.startswith(prefix) and _utf8(key) > _utf8(start_after) and not is_unfinished(key)
        ]
        for key in sorted(keys, key=_utf8):
            yield self._info(key, found[key], None)

    def folders(self) -> Sequence[str]:
        """List the names of the folders at the tier's root. Raises Invalid when there is no such
        root."""
        try:
            with self._errors.translate_errors("list", "", ABSENT):
                entries = self._filesystem.ls(self._path(""), detail=True)
        except ABSENT:
            raise Invalid(f"{self._url}: there is no such folder") from None
        return [
            self._key(str(details["name"])) for details in entries if details["type"] == "directory"
        ]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                with self._errors.translate_errors("delete", key, ABSENT):
                    self._filesystem.rm_file(self._path(key))
            except ABSENT:
                continue

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        folder = prefix.rpartition("/")[0]
        with self._errors.translate_errors("abort uploads", prefix, ABSENT):
            try:
                return self._writes.abort(
                    self._path(folder), f"{self._root}/{prefix}", older_than_ms
                )
            except ABSENT:
                return 0

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root or "/"

    def _key(self, path: str) -> str:
        """Filesystems differ in whether their paths begin with a slash."""
        return path.strip("/").removeprefix(self._root.strip("/")).lstrip("/")

    def _info(
        self, key: str, details: Mapping[str, Any], metadata: Mapping[str, str] | None
    ) -> ObjectInfo:
        size = details.get("size")
        if not isinstance(size, int):
            raise Unavailable(f"{self._url}/{key}: the filesystem tells no size", path=key)
        return ObjectInfo(
            key, size, parse_modified_ms(details), metadata, str(details.get("ETag", ""))
        )


def _utf8(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _filesystem(
    protocol: str, options: Mapping[str, Any], errors: ErrorMapper
) -> AbstractFileSystem:
    try:
        return fsspec.filesystem(
            protocol, **{**options, "use_listings_cache": False, "skip_instance_cache": True}
        )
    except Exception as error:
        text = errors.redact(" ".join(str(error).split()))
        raise Invalid(f"{protocol}://: {type(error).__name__}: {text}") from None
