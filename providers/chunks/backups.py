"""The backups of a broker's files in an object store: an object each, made once, below

<cluster folder>/<broker>/.backups/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tieredstore.contracts.backups import BACKUP_FOLDER, BackupName
from tieredstore.errors import Busy, Unavailable
from tieredstore.providers.chunks.client import ObjectClient


class ObjectBackups:
    """Those of one broker. folder: the key prefix of the broker, without a slash at its end."""

    def __init__(self, client: ObjectClient, folder: str) -> None:
        self._client = client
        self._prefix = f"{folder}/{BACKUP_FOLDER}/"

    def list(self) -> Sequence[BackupName]:
        keys = (info.key.removeprefix(self._prefix) for info in self._client.list(self._prefix))
        return sorted(name for key in keys if (name := BackupName.parse(key)) is not None)

    def read(self, name: BackupName) -> bytes | None:
        key = self._make_key(name)
        found = self._client.head(key)
        return self._client.get_range(key, 0, found.size_bytes) if found is not None else None

    def write(self, name: BackupName, data: bytes) -> None:
        key = self._make_key(name)
        try:
            is_made = self._client.put_if_absent(key, [data], {})
        except Busy as error:
            raise Unavailable(f"{key}: cannot be made: {error}", path=key) from error
        if not is_made:
            raise Unavailable(f"{key}: is there already", path=key)

    def delete(self, names: Iterable[BackupName]) -> None:
        self._client.delete([self._make_key(name) for name in names])

    def _make_key(self, name: BackupName) -> str:
        return f"{self._prefix}{name}"
