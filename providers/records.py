"""Small records next to the segments of a provider: store times and backups. Each record is written
once, into a folder of its broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from tieredstore.contracts.backups import BACKUP_FOLDER, BackupName
from tieredstore.contracts.time_records import TIMES_FOLDER, TimesName
from tieredstore.errors import Unavailable
from tieredstore.providers import naming


class RecordFolder(Protocol):
    """Folder of records. All methods raise Unavailable."""

    @property
    def place(self) -> str:
        """Path or key prefix of the folder, without a trailing slash."""

    def list(self, depth: int = 1) -> Iterable[str]:
        """Yield the names of the records, in any order. With a `depth` above 1, yield paths of at
        least `depth` parts: records in subfolders, or the subfolders themselves."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a record, or None if it does not exist."""

    def read_range(self, name: str, position: int, length: int) -> bytes | None:
        """Return up to `length` bytes of a record from `position` on, and fewer only at its end.
        Return None if the record does not exist."""
        ...

    def write(self, name: str, data: bytes) -> bool:
        """Store a record atomically. Returns False if it already exists."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete records. Idempotent."""


class RecordingProvider(ABC):
    """Base class of providers that store store times (`TimesPlace`) and backups (`RangedBackups`)
    in the tier."""

    @abstractmethod
    def open_records(self, *names: str, is_secret: bool = False) -> RecordFolder:
        """Return the folder with these names below the cluster's folder. `is_secret`: whether other
        users must not read it."""

    def list_times(self, path: str) -> Sequence[TimesName]:
        names = map(TimesName.parse, self._open_times(path).list())
        return sorted(name for name in names if name is not None)

    def read_times(self, path: str, name: TimesName) -> bytes | None:
        return self._open_times(path).read(str(name))

    def write_times(self, path: str, name: TimesName, data: bytes) -> None:
        self._open_times(path).write(str(name), data)

    def delete_times(self, path: str, names: Iterable[TimesName]) -> None:
        self._open_times(path).delete(map(str, names))

    def list_timed_paths(self, broker_name: str) -> Sequence[str]:
        naming.check_name(broker_name, "broker name")
        found = set()
        for name in self.open_records(broker_name, TIMES_FOLDER).list(2):
            topic, _, rest = name.partition("/")
            queue_id, _, file = rest.partition("/")
            is_times = not file or TimesName.parse(file) is not None
            if is_times and naming.is_name(topic) and naming.is_queue_id(queue_id):
                found.add(f"{broker_name}/{topic}/{queue_id}")
        return sorted(found)

    def _open_times(self, path: str) -> RecordFolder:
        parts = naming.parse_logical_path(path)
        return self.open_records(parts.broker_name, TIMES_FOLDER, parts.topic, parts.queue_id)

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        names = map(BackupName.parse, self._open_backups(broker_name).list())
        return sorted(name for name in names if name is not None)

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        return self._open_backups(broker_name).read(str(name))

    def read_backup_range(
        self, broker_name: str, name: BackupName, position: int, length: int
    ) -> bytes | None:
        return self._open_backups(broker_name).read_range(str(name), position, length)

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        folder = self._open_backups(broker_name)
        # After a lost reply to the first attempt, the record has these very bytes.
        if not folder.write(str(name), data) and folder.read(str(name)) != data:
            path = f"{folder.place}/{name}"
            raise Unavailable(f"{path}: is there already", path=path)

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        self._open_backups(broker_name).delete(map(str, names))

    def _open_backups(self, broker_name: str) -> RecordFolder:
        naming.check_name(broker_name, "broker name")
        return self.open_records(broker_name, BACKUP_FOLDER, is_secret=True)
