"""Bytes of a chunk log that are kept in memory, within a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from cachetools import LRUCache


class ByteCache:
    """The bytes used last, at most `max_bytes` in all; thread-safe. Longer ones are not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: LRUCache[Hashable, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            return self._entries.get(key)

    def put(self, key: Hashable, content: bytes) -> None:
        if len(content) <= self._max_bytes:
            with self._lock:
                self._entries[key] = content

    @property
    def size_bytes(self) -> int:
        return int(self._entries.currsize)


class _Entry(NamedTuple):
    """kept_ms: since when; position: in the object, of the first byte."""

    kept_ms: int
    position: int
    content: bytes


class WriteCache:
    """Contents of small objects, or the ends of large ones, by key, from when they are written to
    when they are merged.

    At most `max_bytes` in all; when it is full, new ones are refused rather than old ones given
    up: each is wanted once, when its turn comes, and with many queues taking turns the oldest is
    the next. What nobody wanted for `max_age_ms` goes. Thread-safe.
    """

    def __init__(self, max_bytes: int, max_age_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._monotonic_ms = monotonic_ms
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str, position: int, length: int) -> bytes | None:
        """Return bytes of an object; None where one of them is not kept."""
        found = self._entries.get(key)
        if found is None or position < found.position:
            return None
        start = position - found.position
        content = found.content[start : start + length]
        return content if len(content) == length else None

    def put(self, key: str, content: bytes, position: int = 0) -> None:
        """Keep the bytes of an object from a position on, to its end."""
        now_ms = self._monotonic_ms()
        with self._lock:
            self._remove(key)
            while self._entries:
                oldest = next(iter(self._entries))
                if now_ms - self._entries[oldest].kept_ms <= self._max_age_ms:
                    break
                self._remove(oldest)
            if self._size_bytes + len(content) <= self._max_bytes:
                self._entries[key] = _Entry(now_ms, position, content)
                self._size_bytes += len(content)

    def forget(self, key: str, position: int, length: int) -> None:
        """Keep these bytes of an object no longer; what is kept of it are those before or behind
        them. All of it goes where there are none, or both."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return
            before = found.content[: max(0, position - found.position)]
            behind = found.content[max(0, position + length - found.position) :]
            rest, start = (before, found.position) if before else (behind, position + length)
            if not rest or (before and behind):
                self._remove(key)
                return
            self._size_bytes -= len(found.content) - len(rest)
            self._entries[key] = _Entry(found.kept_ms, max(start, found.position), rest)

    def drop(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._remove(key)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def _remove(self, key: str) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._size_bytes -= len(found.content)
