"""Records of a provider as objects of an object store (`providers.records`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.contracts.objects import ObjectClient
from tieredstore.errors import Busy, Unavailable

_READ_BYTES: Final = 256 << 10
"""Number of bytes of the first request of a read. The record of times of a segment of 1 GiB has 60
KB, or 120 KB with large messages."""


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """Records below a key prefix. `place`: the prefix, without a trailing slash."""

    client: ObjectClient
    place: str

    def list(self, depth: int = 1) -> Iterator[str]:
        del depth  # A listing has all keys below the prefix.
        prefix = f"{self.place}/"
        return (info.key.removeprefix(prefix) for info in self.client.list(prefix))

    def read(self, name: str) -> bytes | None:
        begin = self.read_range(name, 0, _READ_BYTES)
        if begin is None or len(begin) < _READ_BYTES:
            return begin
        found = self.client.head(f"{self.place}/{name}")
        if found is None or found.size_bytes == len(begin):
            return begin if found else None
        rest = self.read_range(name, len(begin), found.size_bytes - len(begin))
        return None if rest is None else begin + rest

    def read_range(self, name: str, position: int, length: int) -> bytes | None:
        return self.client.get_range(f"{self.place}/{name}", position, length)

    def write(self, name: str, data: bytes) -> bool:
        key = f"{self.place}/{name}"
        try:
            return self.client.put_if_absent(key, [data], {})
        except Busy as error:
            raise Unavailable(f"{key}: cannot be made: {error}", path=key) from error

    def delete(self, names: Iterable[str]) -> None:
        self.client.delete([f"{self.place}/{name}" for name in names])
