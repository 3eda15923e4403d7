"""Recorded store times in an object store. Each record is an object that is written once, below
<cluster folder>/<broker>/.times/<topic>/<queue id>/"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tieredstore.contracts.backups import BACKUP_FOLDER, BackupName
from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.time_records import TIMES_FOLDER, TimesName
from tieredstore.errors import Busy, Unavailable
from tieredstore.providers import naming

_READ_BYTES: Final = 256 << 10
"""Number of bytes read by one request. The record of a segment of 1 GiB has 60 KB, or 120 KB with
large messages."""


class ObjectTimes:
    """The records of store times in one cluster's folder (`TimesPlace`).

    `folder`: the key prefix of the cluster, without a trailing slash.
    """

    def __init__(self, client: ObjectClient, folder: str) -> None:
        self._client = client
        self._folder = folder

    def list_times(self, path: str) -> Sequence[TimesName]:
        prefix = self._prefix(path)
        keys = (info.key.removeprefix(prefix) for info in self._client.list(prefix))
        return sorted(name for key in keys if (name := TimesName.parse(key)) is not None)

    def read_times(self, path: str, name: TimesName) -> bytes | None:
        key = f"{self._prefix(path)}{name}"
        parts: list[bytes] = []
        while not parts or len(parts[-1]) == _READ_BYTES:
            part = self._client.get_range(key, len(parts) * _READ_BYTES, _READ_BYTES)
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def write_times(self, path: str, name: TimesName, data: bytes) -> None:
        key = f"{self._prefix(path)}{name}"
        try:
            self._client.put_if_absent(key, [data], {})
        except Busy as error:
            raise Unavailable(f"{key}: cannot be made: {error}", path=key) from error

    def delete_times(self, path: str, names: Iterable[TimesName]) -> None:
        prefix = self._prefix(path)
        self._client.delete([f"{prefix}{name}" for name in names])

    def list_timed_paths(self, broker_name: str) -> Sequence[str]:
        naming.check_name(broker_name, "broker name")
        prefix = f"{self._folder}/{broker_name}/{TIMES_FOLDER}/"
        found: dict[str, None] = {}
        for info in self._client.list(prefix):
            topic, _, rest = info.key.removeprefix(prefix).partition("/")
            queue_id, _, name = rest.partition("/")
            if (
                naming.is_name(topic)
                and naming.is_queue_id(queue_id)
                and TimesName.parse(name) is not None
            ):
                found[f"{broker_name}/{topic}/{queue_id}"] = None
        return list(found)

    def _prefix(self, path: str) -> str:
        parts = naming.parse_logical_path(path)
        return f"{self._folder}/{parts.broker_name}/{TIMES_FOLDER}/{parts.topic}/{parts.queue_id}/"


class ObjectBackups:
    """Backups of one broker. `folder`: the key prefix of the broker, without a trailing slash."""

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

    def read_range(self, name: BackupName, position: int, length: int) -> bytes | None:
        return self._client.get_range(self._make_key(name), position, length)

    def write(self, name: BackupName, data: bytes) -> None:
        key = self._make_key(name)
        try:
            is_made = self._client.put_if_absent(key, [data], {})
        except Busy as error:
            raise Unavailable(f"{key}: cannot be made: {error}", path=key) from error
        # After a lost reply to the first attempt, the object has these very bytes.
        if not is_made and self.read(name) != data:
            raise Unavailable(f"{key}: is there already", path=key)

    def delete(self, names: Iterable[BackupName]) -> None:
        self._client.delete([self._make_key(name) for name in names])

    def _make_key(self, name: BackupName) -> str:
        return f"{self._prefix}{name}"
