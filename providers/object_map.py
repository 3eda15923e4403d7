"""What a chunk log needs from an object store, and such a store in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a HEAD saw it; a listing knows no metadata."""

    key: str
    size_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectMap(Protocol):
    """Immutable objects by key. Calls block and are thread-safe.

    Unavailable means that the outcome is not known: the call may have been applied. Busy means
    that it was not applied and may be tried again (409 of an object store).
    """

    def put_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str]) -> bool:
        """Whether the object was made; False when the key is taken (412)."""
        ...

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        """Up to `length` bytes; None when there is no such object (404)."""
        ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        """All objects whose keys start with `prefix`, in any order."""
        ...

    def delete(self, key: str) -> None:
        """Idempotent."""
        ...


class MemoryObjectMap:
    """An object store with conditional create, in this process's memory."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, Mapping[str, str]]] = {}
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes, metadata: Mapping[str, str]) -> bool:
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = (data, dict(metadata))
            return True

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        found = self._objects.get(key)
        return found[0][position : position + length] if found is not None else None

    def head(self, key: str) -> ObjectInfo | None:
        found = self._objects.get(key)
        return ObjectInfo(key, len(found[0]), found[1]) if found is not None else None

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        with self._lock:
            return tuple(
                ObjectInfo(key, len(data))
                for key, (data, _) in sorted(self._objects.items())
                if key.startswith(prefix)
            )

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)
