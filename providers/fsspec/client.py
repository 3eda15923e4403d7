"""Objects of a chunk log on any fsspec filesystem (`docs/fsspec.md`). The client uses only features
that every filesystem has: whole objects, ranges, `info`, and listings without a cache. No
conditional create is portable, so `limits.conditional` is false and only one writer is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import fsspec.core
from fsspec.spec import AbstractFileSystem

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectInfo, Part
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.providers.checks import total_bytes
from tieredstore.providers.fsspec.listing import list_files, parse_modified_ms, require_bucket
from tieredstore.providers.fsspec.writes import MAX_PUT_BYTES, choose_writes, is_unfinished

_SECRET_NAME = re.compile(
    r"key|secret|token|passw|passphrase|credential|connection_string|sas|auth|signature",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 4
_HIDDEN = "***"

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that filesystems raise for a missing object. Only filesystems with folders raise the last
two."""

_USELESS_TO_RETRY = (
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    ValueError,
    TypeError,
)
_USELESS_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "ProfileNotFound"}
)
"""Names of errors of the underlying libraries that indicate a wrong set-up. They are compared by
name, so that no library is imported."""


def is_secret_name(name: str) -> bool:
    """Return whether an option with this name may hold a secret."""
    return bool(_SECRET_NAME.search(name))


def find_secrets(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the secret values in storage options, longest first. No message may show them."""
    found: set[str] = set()

    def look(value: object, is_secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                look(inner, is_secret or is_secret_name(str(name)))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                look(inner, is_secret)
        elif is_secret and isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            found.update((value, quote(value), quote(value, safe="")))

    look(options, is_secret=False)
    return tuple(sorted(found, key=len, reverse=True))


class ErrorMapper:
    """Translates errors of a filesystem into Invalid or Unavailable, with the name of the
    object."""

    def __init__(self, url: str, secrets: tuple[str, ...] = ()) -> None:
        self._url = url
        self._secrets = secrets

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def translate(self, error: Exception, operation: str, key: str) -> TieredStoreError:
        """Return Invalid for an error that a retry cannot fix. Otherwise return Unavailable,
        because the outcome is unknown."""
        name = type(error).__name__
        text = self.redact(" ".join(str(error).split()))
        useless = isinstance(error, _USELESS_TO_RETRY) or name in _USELESS_NAMES
        kind = Invalid if useless else Unavailable
        return kind(f"{self._url}/{key}: {operation}: {name}: {text}", path=key)

    @contextmanager
    def translate_errors(
        self, operation: str, key: str, answers: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Translate the errors of the block. `answers`: errors to raise unchanged because they are
        valid answers, such as ABSENT for a read."""
        try:
            yield
        except TieredStoreError:
            raise
        except Exception as error:
            if isinstance(error, answers):
                raise
            # no `from`: the original's text and arguments may hold secrets
            raise self.translate(error, operation, key) from None


COPY_PIECE_BYTES = 8 << 20
"""Number of bytes of a copied part that are in memory at a time."""

_LIMITS = ClientLimits(
    conditional=False, min_part_bytes=1, max_part_bytes=5 << 30, max_put_bytes=MAX_PUT_BYTES
)


class FsspecClient:
    """ObjectClient below `root` (a path, or a bucket with a prefix) of a filesystem.

    `options`: storage options of the filesystem. They never appear in a URL or a message.
    `atomic_writes`: see `fsspec_writes.choose_writes`.

    Raises Invalid if the protocol is unknown or its package is missing.
    """

    def __init__(
        self,
        protocol: str,
        root: str,
        options: Mapping[str, object] | None = None,
        *,
        atomic_writes: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = f"{protocol}://{root.rstrip('/')}"
        self._clock = clock
        self._errors = ErrorMapper(self.url, find_secrets(options or {}))
        self._filesystem = _filesystem(protocol, options or {}, self._errors)
        with self._errors.translate_errors("open", ""):
            self._root = str(fsspec.core.strip_protocol(self.url)).rstrip("/")
        self._writes = choose_writes(self._filesystem, protocol, atomic_writes=atomic_writes)

    @property
    def limits(self) -> ClientLimits:
        return _LIMITS

    def now_ms(self) -> int:
        """Return this machine's time in epoch ms. fsspec does not report the server's time."""
        return self._clock.now_ms()

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        """Put an object. This is not atomic: two concurrent writers may both get True, and the
        later bytes stay."""
        return self._put_object(key, buffers, total_bytes(buffers), metadata)

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        """Compose an object. The bytes of copied parts pass through this process."""
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
                    text = (
                        f"{self.url}/{part.key}: copy: expected {length} bytes at {position}, "
                        f"found {found}"
                    )
                    raise Unavailable(text, path=part.key, offset=position)
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
                # Beyond the end, some filesystems fail and others return no bytes.
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
            text = (
                f"{self.url}/{key}: read: expected {expected} bytes at {position}, found "
                f"{len(data)}"
            )
            raise Unavailable(text, path=key, offset=position)
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
        """List the objects below `prefix` in one call, and sort them. fsspec has no pages."""
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
        """Return the names of the folders at the tier's root. Raises Invalid without a root."""
        try:
            with self._errors.translate_errors("list", "", ABSENT):
                entries = self._filesystem.ls(self._path(""), detail=True)
        except ABSENT:
            raise Invalid(f"{self.url}: there is no such folder") from None
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
        """No-op: the client has no resources."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root or "/"

    def _key(self, path: str) -> str:
        """Return the tier's key for a path, which may begin with a slash."""
        return path.strip("/").removeprefix(self._root.strip("/")).lstrip("/")

    def _info(
        self, key: str, details: Mapping[str, object], metadata: Mapping[str, str] | None
    ) -> ObjectInfo:
        size = details.get("size")
        if not isinstance(size, int):
            raise Unavailable(f"{self.url}/{key}: the filesystem tells no size", path=key)
        return ObjectInfo(
            key, size, parse_modified_ms(details), metadata, str(details.get("ETag", ""))
        )


def _utf8(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def _filesystem(
    protocol: str, options: Mapping[str, object], errors: ErrorMapper
) -> AbstractFileSystem:
    try:
        return fsspec.filesystem(
            protocol, **{**options, "use_listings_cache": False, "skip_instance_cache": True}
        )
    except Exception as error:
        text = errors.redact(" ".join(str(error).split()))
        raise Invalid(f"{protocol}://: {type(error).__name__}: {text}") from None
