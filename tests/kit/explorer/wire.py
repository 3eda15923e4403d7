"""Requests and replies as plain values, with a client that sends them and a store that answers
them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeAlias

from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectInfo, Part
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient


class Request(NamedTuple):
    """A request. `verb` is PUT, GET, HEAD, LIST (one page), DELETE, or SLEEP. `key` is an object's
    key or a prefix. `detail` depends on the verb: content and metadata, position and length, the
    start of the page, all keys to delete, or milliseconds."""

    verb: str
    key: str
    detail: tuple[Hashable, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the request can change objects."""
        return self.verb in {"PUT", "DELETE"}


class Reply(NamedTuple):
    """A reply. `value` is the store's result. `now_ms` is the time of the server's clock. With
    `is_lost`, the reply never arrives."""

    value: Hashable = None
    now_ms: int = 0
    is_lost: bool = False


Ask: TypeAlias = Callable[[Request], Reply]


class WireClient:
    """An ObjectClient that translates each call into requests, and gets the replies from the
    function `ask`.

    A multipart upload becomes one read per copied part and one conditional create, because other
    processes cannot see its other parts.
    """

    url = "explored://"

    def __init__(self, ask: Ask, limits: ClientLimits, page_keys: int, now_ms: int) -> None:
        self._ask_wire = ask
        self._page_keys = page_keys
        self._now_ms = now_ms
        self.limits = limits

    def now_ms(self) -> int:
        return self._now_ms

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        detail = (b"".join(buffers), tuple(sorted(metadata.items())))
        return bool(self._ask(Request("PUT", key, detail)))

    def compose(self, key: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> bool:
        content: list[Buffer] = []
        for part in parts:
            if isinstance(part, CopiedPart):
                copied = self.get_range(part.key, part.position, part.length)
                if copied is None:
                    raise Unavailable(f"{key}: {part.key} is not there to be copied", path=key)
                content.append(copied)
            else:
                content += part
        return self.put_if_absent(key, content, metadata)

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        found = self._ask(Request("GET", key, (position, length)))
        assert found is None or isinstance(found, bytes)
        return found

    def head(self, key: str) -> ObjectInfo | None:
        found = self._ask(Request("HEAD", key))
        if found is None:
            return None
        assert isinstance(found, tuple)
        size_bytes, modified_ms, metadata, etag = found
        return ObjectInfo(key, size_bytes, modified_ms, dict(metadata), etag)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        while True:
            page = self._ask(Request("LIST", prefix, (start_after,)))
            assert isinstance(page, tuple)
            yield from page
            if len(page) < self._page_keys:
                return
            start_after = page[-1].key

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._ask(Request("DELETE", keys[0], (*keys,)))

    def abort_uploads(self, prefix: str, older_than_ms: int) -> int:
        return 0

    def sleep(self, duration_ms: int) -> None:
        """Advance the clocks of the server and this process."""
        self._ask(Request("SLEEP", "", (duration_ms,)))

    def close(self) -> None:
        """Do nothing."""

    def _ask(self, request: Request) -> Hashable:
        reply = self._ask_wire(request)
        if reply.is_lost:
            raise Unavailable(f"{request.verb} {request.key}: no reply", path=request.key)
        self._now_ms = reply.now_ms
        return reply.value


class Disk(NamedTuple):
    """Content of the store. `objects` maps keys to object numbers. `now_ms` is the store's time."""

    objects: frozenset[tuple[str, int]]
    now_ms: int


class Store(MemoryObjectClient):
    """In-memory object store whose content is set before each request. All ETags are equal, so a
    condition on them never fails."""

    def __init__(self, page_keys: int) -> None:
        super().__init__(page_keys=page_keys, now_ms=lambda: self._disk.now_ms)
        self._disk = Disk(frozenset(), 0)
        self._store.numbers = repeat(0)
        self._numbers: dict[Hashable, int] = {}
        self._objects = [*self._store.objects.values()]
        self._answers: dict[tuple[Disk, Request], tuple[Disk, Reply]] = {}

    def answer(self, disk: Disk, request: Request) -> tuple[Disk, Reply]:
        """Execute a request. The result depends only on the arguments."""
        answer = self._answers.get((disk, request))
        if answer is None:
            answer = self._answers[disk, request] = self._carry_out(disk, request)
        return answer

    def _carry_out(self, disk: Disk, request: Request) -> tuple[Disk, Reply]:
        if request.verb == "SLEEP":
            (duration_ms,) = request.detail
            assert isinstance(duration_ms, int)
            now_ms = disk.now_ms + duration_ms
            return disk._replace(now_ms=now_ms), Reply(None, now_ms)
        self._disk = disk
        self._store.objects = {key: self._objects[number] for key, number in disk.objects}
        self._store.keys = sorted(self._store.objects)
        value = self._call(request)
        if request.changes:
            items = self._store.objects.items()
            objects = frozenset((key, self._intern(found)) for key, found in items)
            disk = disk._replace(objects=objects)
        return disk, Reply(value, disk.now_ms)

    def _call(self, request: Request) -> Hashable:
        detail: Any = request.detail
        if request.verb == "PUT":
            content, metadata = detail
            return self.put_if_absent(request.key, [content], dict(metadata))
        if request.verb == "GET":
            return self.get_range(request.key, *detail)
        if request.verb == "LIST":
            return tuple(islice(self.list(request.key, *detail), self._page_keys))
        if request.verb == "DELETE":
            self.delete(detail)
            return None
        found = self.head(request.key)
        if found is None:
            return None
        metadata = tuple(sorted((found.metadata or {}).items()))
        return found.size_bytes, found.modified_ms, metadata, found.etag

    def _intern(self, found: Any) -> int:
        """Return the number by which states refer to an object. Equal objects share a number."""
        metadata = tuple(sorted(found.metadata.items()))
        identity = found.content, found.modified_ms, metadata
        number = self._numbers.setdefault(identity, len(self._objects))
        if number == len(self._objects):
            self._objects.append(found)
        return number
