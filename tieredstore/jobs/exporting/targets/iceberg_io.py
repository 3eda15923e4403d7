"""File access for pyiceberg that uses the tier's own S3 client for files in S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io

from tieredstore.errors import Unavailable
from tieredstore.jobs.exporting.targets.objects import ObjectWriter, connect_s3, open_object

IMPLEMENTATION = "py-io-impl"
"""Catalog property with the class of pyiceberg's file access."""
_OPTIONS = {
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "client.region": "region",
    "s3.access-key-id": "access_key",
    "client.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "client.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "client.session-token": "session_token",
}


class S3FileIO(FileIO):
    """File access through the tier's S3 client for `s3://…` with known properties, and through
    pyiceberg's for other locations."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(dict(properties or {}))
        self._clients: dict[str, object] = {}

    def new_input(self, location: str) -> InputFile:
        place = self._split(location)
        if place is None:
            return self._other(location).new_input(location)
        return ObjectFile(location, *place)

    def new_output(self, location: str) -> OutputFile:
        place = self._split(location)
        if place is None:
            return self._other(location).new_output(location)
        return ObjectFile(location, *place)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        text = location if isinstance(location, str) else location.location
        place = self._split(text)
        if place is None:
            self._other(text).delete(location)
            return
        client, key = place
        client.delete([key])

    def _split(self, location: str) -> tuple[Any, str] | None:
        """Return the client of the bucket, and the key. Return None for other locations."""
        scheme, _, rest = location.partition("://")
        # Our client has no signer, role or proxy.
        foreign = {name for name in self.properties if name.startswith(("s3.", "client."))}
        if scheme not in {"s3", "s3a"} or foreign - _OPTIONS.keys():
            return None
        bucket, _, key = rest.partition("/")
        if bucket not in self._clients:
            options: dict[str, str] = {}
            for name, option in _OPTIONS.items():
                if name in self.properties:  # The first of the names counts, as in pyiceberg.
                    options.setdefault(option, self.properties[name])
            self._clients[bucket] = connect_s3(bucket, "", options)
        return self._clients[bucket], key

    def _other(self, location: str) -> FileIO:
        given = {name: value for name, value in self.properties.items() if name != IMPLEMENTATION}
        return load_file_io(given, location)


class ObjectFile(InputFile, OutputFile):
    """Object to read or create. pyiceberg creates objects only under new names."""

    def __init__(self, location: str, client: Any, key: str) -> None:
        super().__init__(location)
        self._client = client
        self._key = key

    def __len__(self) -> int:
        found = self._client.head(self._key)
        if found is None:
            raise Unavailable(f"{self.location}: there is no such object", path=self.location)
        size: int = found.size_bytes
        return size

    def exists(self) -> bool:
        return self._client.head(self._key) is not None

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002
        return open_object(self._client, self._key)

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002
        return ObjectWriter(self._client, self._key)
