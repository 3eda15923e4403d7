"""Bytes of a chunk log that are kept in memory, within a bound."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable

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

    def drop(self, keys: Iterable[Hashable]) -> None:
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)

    @property
    def size_bytes(self) -> int:
        return int(self._entries.currsize)
