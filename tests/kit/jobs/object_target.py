"""An in-memory bucket as the target of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tieredstore.contracts.objects import ObjectInfo
from tieredstore.contracts.segment import Buffer
from tieredstore.providers.memory.objects import MemoryObjectClient


class Bucket:
    """Bucket that runs a hook before each request. `page_keys` is the page size of listings."""

    def __init__(self, page_keys: int = 1000) -> None:
        self.objects = MemoryObjectClient(page_keys=page_keys)
        self.on_request: Callable[[str, str], None] = lambda operation, key: None

    def connect(self, bucket: str, prefix: str, options: Mapping[str, str]) -> BucketFolder:
        """Return a view of the keys below `prefix`, as a replacement for `connect_s3`."""
        del bucket, options
        return BucketFolder(self, prefix.strip("/"))

    def data_files(self) -> dict[str, bytes]:
        """Return the objects that readers of the folder use, by key."""
        found = [info.key for info in self.objects.list("")]
        return {
            key: self.objects.get_range(key, 0, 1 << 40) or b""
            for key in found
            if not any(part.startswith("_") for part in key.split("/"))
        }


class BucketFolder:
    """An `ObjectClient` for the bucket's keys with a prefix."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/"
        self.url = f"s3://bucket/{prefix}"

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        full = self._ask("PUT", key)
        return self._bucket.objects.put_if_absent(full, buffers, metadata)

    def compose(
        self, key: str, parts: Sequence[Sequence[Buffer]], metadata: Mapping[str, str]
    ) -> bool:
        return self.put_if_absent(key, [buffer for part in parts for buffer in part], metadata)

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        return self._bucket.objects.get_range(self._ask("GET", key), position, length)

    def head(self, key: str) -> ObjectInfo | None:
        return self._bucket.objects.head(self._ask("HEAD", key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for found in self._bucket.objects.list(self._ask("LIST", prefix)):
            key = found.key.removeprefix(self._prefix)
            yield ObjectInfo(key, found.size_bytes, found.modified_ms, None, found.etag)

    def names(self, folder: str) -> Sequence[str]:
        below = f"{folder}/" if folder else ""
        found = {info.key.removeprefix(below).partition("/")[0] for info in self.list(below)}
        return sorted(found)

    def copy(self, key: str, to: str) -> bool:
        self._ask("COPY", to)
        objects = self._bucket.objects
        data = objects.get_range(self._prefix + key, 0, 1 << 40)
        if data is None:
            return False
        objects.put_if_absent(self._prefix + to, [data], {})
        return True

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._bucket.objects.delete([self._ask("DELETE", key)])

    def close(self) -> None:
        pass

    def _ask(self, operation: str, key: str) -> str:
        self._bucket.on_request(operation, key)
        return self._prefix + key
