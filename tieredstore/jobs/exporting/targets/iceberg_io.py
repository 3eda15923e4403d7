"""pyiceberg's access to files, through the tier's own S3 client where files are in S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io

from tieredstore.errors import Unavailable
from tieredstore.jobs.exporting.targets.objects import ObjectWriter, connect_s3, open_object

IMPLEMENTATION = "py-io-impl"
"""The property of a catalog that names pyiceberg's access to files."""
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
    """Ours for `s3://…` with properties that ours has too; else what pyiceberg takes itself."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(dict(properties or {}))
        self._clients: dict[str, Any] = {}

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
        """Client of the bucket, and key; None for what is not ours."""
        scheme, _, rest = location.partition("://")
        if scheme not in {"s3", "s3a"} or not _is_known(self.properties):
            return None
        bucket, _, key = rest.partition("/")
        if bucket not in self._clients:
            self._clients[bucket] = connect_s3(bucket, "", _options(self.properties))
        return self._clients[bucket], key

    def _other(self, location: str) -> FileIO:
        given = {name: value for name, value in self.properties.items() if name != IMPLEMENTATION}
        return load_file_io(given, location)


def _is_known(properties: Mapping[str, str]) -> bool:
    """No property asks for what our client is not told: a signer, a role, a proxy."""
    return all(name in _OPTIONS or not name.startswith(("s3.", "client.")) for name in properties)


def _options(properties: Mapping[str, str]) -> dict[str, str]:
    """The first of the names for an option counts, as for pyiceberg."""
    found: dict[str, str] = {}
    for name, option in _OPTIONS.items():
        if name in properties:
            found.setdefault(option, properties[name])
    return found


class ObjectFile(InputFile, OutputFile):
    """An object that is read, or made. All names of objects that pyiceberg makes are new ones."""

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
