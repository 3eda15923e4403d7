"""Bytes of a chunk log that are kept in memory, within a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

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


class WriteCache:
    """Contents of small objects, by key, from when they are written to when they are merged.

    At most `max_bytes` in all; when it is full, new ones are refused rather than old ones given
    up: each is wanted once, when its turn comes, and with many queues taking turns the oldest is
    the next. What nobody wanted for `max_age_ms` goes. Thread-safe.
    """

    def __init__(self, max_bytes: int, max_age_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._monotonic_ms = monotonic_ms
        self._entries: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        found = self._entries.get(key)
        return found[1] if found is not None else None

    def put(self, key: str, content: bytes) -> None:
        now_ms = self._monotonic_ms()
        with self._lock:
            self._remove(key)
            while self._entries:
                oldest = next(iter(self._entries))
                if now_ms - self._entries[oldest][0] <= self._max_age_ms:
                    break
                self._remove(oldest)
            if self._size_bytes + len(content) <= self._max_bytes:
                self._entries[key] = now_ms, content
                self._size_bytes += len(content)

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
            self._size_bytes -= len(found[1])
