"""Files of a target in S3. All requests use the tier's own S3 client, with its retries. A file
stays on the local disk until it is closed. Then it is sent with its length, and created only if it
is missing. pyarrow's client is not used, because it sends bodies in two nested encodings that some
servers misread as further requests."""

from __future__ import annotations

import io
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from tieredstore import registry
from tieredstore.contracts.objects import FolderClient
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Busy, Unavailable

_IN_MEMORY_BYTES = 8 << 20
_PART_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_READ_TIMEOUT_MS = 60_000
_ATTEMPTS = 5
_Result = TypeVar("_Result")


def connect_s3(bucket: str, prefix: str, options: Mapping[str, str]) -> FolderClient:
    """Open a prefix in a bucket. The options are `storage.S3_OPTIONS`. Raises Invalid."""
    endpoint = endpoint_of(options)
    settings = {
        "objectStoreBucket": bucket,
        "tieredStoreS3Prefix": prefix.strip("/"),
        "objectStoreEndpoint": endpoint,
        "tieredStoreS3PathStyle": "path" if endpoint else "auto",
        "tieredStoreS3Region": options.get("region") or os.environ.get("AWS_REGION", ""),
        "objectStoreAccessKey": options.get("access_key", ""),
        "objectStoreSecretKey": options.get("secret_key", ""),
        "tieredStoreS3SessionToken": options.get("session_token", ""),
        "tieredStoreS3ReadTimeout": str(_READ_TIMEOUT_MS),
        "tieredStoreS3FastReads": "false",
    }
    client: FolderClient = registry.object_client("s3", settings, f"s3://{bucket}/{prefix}")
    return client


def endpoint_of(options: Mapping[str, str]) -> str:
    """Return the URL of the endpoint, or an empty text without one."""
    endpoint = options.get("endpoint_override", "")
    if endpoint and "://" not in endpoint:
        return f"{options.get('scheme', 'https')}://{endpoint}"
    return endpoint


def is_hidden(name: str) -> bool:
    """Return whether readers of a folder of Parquet files ignore a name."""
    return name.startswith((".", "_"))


class ObjectFiles:
    """Objects below a prefix, by name."""

    is_local = False

    def __init__(self, client: FolderClient) -> None:
        self._client = client

    def create(self, name: str) -> ObjectWriter:
        return ObjectWriter(self._client, name)

    def seal(self, name: str) -> None:
        """No-op: a created object is durable."""

    def open(self, name: str) -> io.BufferedReader:
        return open_object(self._client, name)

    def read(self, name: str) -> bytes:
        data = self._client.get_range(name, 0, 1 << 40)
        if data is None:
            raise Unavailable(f"{self._client.url}/{name}: there is no such object", path=name)
        return data

    def exists(self, name: str) -> bool:
        return self._client.head(name) is not None

    def names(self, folder: str = "") -> list[str]:
        return list(self._client.names(folder))

    def sizes(self) -> dict[str, int]:
        found = {info.key: info.size_bytes for info in self._client.list("")}
        return {
            name: size
            for name, size in sorted(found.items())
            if not any(map(is_hidden, name.split("/")))
        }

    def move(self, name: str, to: str) -> bool:
        """Copy the object to its new name. The source stays until its folder is removed."""
        return self._client.copy(name, to)

    def sync_folder(self, name: str) -> None:
        """No-op: an object store has no folders."""

    def delete(self, name: str) -> None:
        self._client.delete([name])

    def delete_folder(self, name: str) -> None:
        self._client.delete([found.key for found in self._client.list(f"{name}/")])

    def put(self, name: str, data: bytes) -> None:
        """Write a small file whose content never changes."""
        self.put_new(name, data)

    def put_new(self, name: str, data: bytes) -> bool:
        return _try_again(lambda: self._client.put_if_absent(name, [data], {}))

    def close(self) -> None:
        self._client.close()


class ObjectWriter:
    """File that becomes an object when it is closed. The name must be unique to this writer. An
    existing object of the same size counts as the result of an earlier attempt."""

    def __init__(self, client: FolderClient, name: str) -> None:
        self._client = client
        self._name = name
        self._spool = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        self.mode = "wb"

    @property
    def closed(self) -> bool:
        return self._spool.closed

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        return self._spool.write(data)

    def flush(self) -> None:
        """No-op: `close` sends the data."""

    def tell(self) -> int:
        return self._spool.tell()

    def close(self) -> None:
        if self._spool.closed:
            return
        with self._spool:
            size = self._spool.tell()
            if not _try_again(lambda: self._send(size)):
                found = self._client.head(self._name)
                if found is None or found.size_bytes != size:
                    raise Unavailable(
                        f"{self._client.url}/{self._name}: expected no object or one of {size} "
                        f"bytes, found {found}",
                        path=self._name,
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._spool.close()

    def _send(self, size: int) -> bool:
        if size <= _IN_MEMORY_BYTES:
            self._spool.seek(0)
            return self._client.put_if_absent(self._name, [self._spool.read()], {})
        self._spool.flush()
        with mmap.mmap(self._spool.fileno(), size, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            parts = [[view[first : first + _PART_BYTES]] for first in range(0, size, _PART_BYTES)]
            try:
                return self._client.compose(self._name, parts, {})
            finally:
                for [part] in parts:
                    part.release()
                view.release()


class _ObjectReader(io.RawIOBase):
    """Reads an object in ranges."""

    def __init__(self, client: FolderClient, name: str, size_bytes: int) -> None:
        self._client = client
        self._name = name
        self._size = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._client.get_range(self._name, self._position, length)
        if data is None:
            raise Unavailable(f"{self._client.url}/{self._name}: the object is gone")
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_object(client: FolderClient, name: str) -> io.BufferedReader:
    """Open an object for random reads. Raises Unavailable if it is missing."""
    found = client.head(name)
    if found is None:
        raise Unavailable(f"{client.url}/{name}: there is no such object", path=name)
    return io.BufferedReader(_ObjectReader(client, name, found.size_bytes), _READ_BYTES)


def _try_again(action: Callable[[], _Result]) -> _Result:
    """Run an action, and retry it while another request for the same key is in progress. Raises
    Unavailable after the last attempt."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return action()
        except Busy as error:
            if attempt == _ATTEMPTS:
                raise Unavailable(str(error), path=error.path) from error
            time.sleep(0.1 * 2**attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError
