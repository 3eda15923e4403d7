"""Object store in this process's memory, for tests and experiments. It has the guarantees of a real
object store: atomic create if absent, strongly consistent paged listings in key order, and
multipart uploads that survive a crash of the client."""

from __future__ import annotations

import bisect
import builtins
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectInfo, Part
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, Unavailable


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    modified_ms: int
    metadata: Mapping[str, str]
    etag: str


@dataclass(slots=True)
class _Upload:
    key: str
    begun_ms: int
    parts: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Store:
    """Content of an object store in memory. `keys`: the keys of `objects`, sorted."""

    objects: dict[str, _Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    uploads: dict[int, _Upload] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.RLock = field(default_factory=threading.RLock)


class MemoryObjectClient:
    """Object store in memory, as one client sees it. `now_ms`: the server's clock. `page_keys`:
    returns the number of keys in the next page of a listing. `beside`: client whose objects this
    client shares. Subclasses override `request` and `reply`, which run before and after each
    request and may raise its error. Operations: PUT, GET, HEAD, LIST (one for each page), DELETE,
    CREATE_UPLOAD, PUT_PART, COPY_PART, COMPLETE_UPLOAD, LIST_UPLOADS, ABORT_UPLOAD."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
        limits: ClientLimits | None = None,
        page_keys: int = 1_000,
        beside: MemoryObjectClient | None = None,
    ) -> None:
        self._now_ms = now_ms
        self.limits = limits if limits is not None else ClientLimits()
        self._page_keys = page_keys
        self._store: _Store = beside._store if beside is not None else _Store()  # noqa: SLF001

    def request(self, operation: str, key: str) -> None:
        """Do nothing. Subclasses override this method to intercept requests before they are carried
        out. It runs without the lock of the objects."""

    def reply(self, operation: str, key: str) -> None:
        """Do nothing. Subclasses override this method to intercept replies. It runs without the
        lock of the objects."""

    @property
    def url(self) -> str:
        return "memory-objects://"

    def now_ms(self) -> int:
        return self._now_ms()

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        content = b"".join(buffers)
        if len(content) > self.limits.max_put_bytes:
            raise Invalid(f"{key}: {len(content)} bytes, at most {self.limits.max_put_bytes}")
        self.request("PUT", key)
        made = self._make(key, content, metadata)
        self.reply("PUT", key)
        return made

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        if not 0 < len(parts) <= self.limits.max_parts:
            raise Invalid(f"{key}: {len(parts)} parts, expected 1 to {self.limits.max_parts}")
        self.request("CREATE_UPLOAD", key)
        with self._store.lock:
            number = next(self._store.numbers)
            upload = self._store.uploads[number] = _Upload(key, self._now_ms())
        self.reply("CREATE_UPLOAD", key)
        try:
            for index, part in enumerate(parts):
                content = self._part(key, part)
                smallest = self.limits.min_part_bytes if index + 1 < len(parts) else 0
                if not smallest <= len(content) <= self.limits.max_part_bytes:
                    raise Invalid(f"{key}: part {index + 1} has {len(content)} bytes")
                upload.parts.append(content)
                self.reply("COPY_PART" if isinstance(part, CopiedPart) else "PUT_PART", key)
            self.request("COMPLETE_UPLOAD", key)
            with self._store.lock:
                if self._store.uploads.pop(number, None) is None:
                    raise Unavailable(f"{key}: its upload was aborted", path=key)
                made = self._make(key, b"".join(upload.parts), metadata)
            self.reply("COMPLETE_UPLOAD", key)
            return made
        except Exception:
            self._store.uploads.pop(number, None)
            raise

    def _part(self, key: str, part: Part) -> bytes:
        if not isinstance(part, CopiedPart):
            self.request("PUT_PART", key)
            return b"".join(part)
        self.request("COPY_PART", key)
        found = self._store.objects.get(part.key)
        if found is None:
            raise Unavailable(f"{key}: {part.key} is not there to be copied", path=key)
        content = found.content[part.position : part.position + part.length]
        if len(content) != part.length:
            raise Invalid(f"{key}: {part.key} ends at {len(found.content)}")
        return content

    def _make(self, key: str, content: bytes, metadata: Mapping[str, str]) -> bool:
        with self._store.lock:
            if self.limits.conditional and key in self._store.objects:
                return False
            if key not in self._store.objects:
                bisect.insort(self._store.keys, key)
            etag = f"{next(self._store.numbers)}"
            self._store.objects[key] = _Object(content, self._now_ms(), dict(metadata), etag)
            return True

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        self.request("GET", key)
        found = self._store.objects.get(key)
        self.reply("GET", key)
        return found.content[position : position + length] if found is not None else None

    def head(self, key: str) -> ObjectInfo | None:
        self.request("HEAD", key)
        found = self._store.objects.get(key)
        self.reply("HEAD", key)
        if found is None:
            return None
        return ObjectInfo(key, len(found.content), found.modified_ms, found.metadata, found.etag)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        last = start_after
        while True:
            self.request("LIST", prefix)
            with self._store.lock:
                first = max(
                    bisect.bisect_left(self._store.keys, prefix),
                    bisect.bisect(self._store.keys, last),
                )
                keys = self._store.keys[first : first + self._page_keys]
                page = [(key, self._store.objects[key]) for key in keys if key.startswith(prefix)]
            self.reply("LIST", prefix)
            for key, found in page:
                yield ObjectInfo(key, len(found.content), found.modified_ms, None, found.etag)
            if len(page) < self._page_keys:
                return
            last = page[-1][0]

    def delete(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self.request("DELETE", keys[0])
        with self._store.lock:
            for key in keys:
                if self._store.objects.pop(key, None) is not None:
                    del self._store.keys[bisect.bisect_left(self._store.keys, key)]
        self.reply("DELETE", keys[0])

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        self.request("LIST_UPLOADS", prefix)
        with self._store.lock:
            stale = [
                number
                for number, upload in self._store.uploads.items()
                if upload.key.startswith(prefix) and upload.begun_ms <= older_than_ms
            ]
        self.reply("LIST_UPLOADS", prefix)
        for number in stale:
            self.request("ABORT_UPLOAD", prefix)
            self._store.uploads.pop(number, None)
            self.reply("ABORT_UPLOAD", prefix)
        return len(stale)

    @property
    def open_uploads(self) -> builtins.list[str]:
        """Keys of the multipart uploads that are still open: neither completed nor aborted."""
        return [upload.key for upload in self._store.uploads.values()]

    def close(self) -> None:
        """No-op: the objects stay, because another provider may use this client."""
