"""BackupPlace: storage for backups of a broker's files, next to the segments of its tier. The name
of a backup consists of the writer epoch (0 if epochs have no number), a sequence number within the
epoch, and the kind of content. Names are never reused. A late backup from a fenced writer therefore
overwrites nothing, and sorts before the backups of later epochs."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

BACKUP_FOLDER = ".backups"
"""Folder below a broker's prefix. No topic can have this name."""
_NAME = re.compile(r"([0-9]{20})\.([0-9]{10})\.([a-z]+)", re.ASCII)


class BackupKind(enum.StrEnum):
    """Kind of content of a backup."""

    CONFIG = "config"
    METADATA = "metadata"
    DELETED = "deleted"
    """List of all deleted topics. The tier no longer has any of their segments."""
    DELETING = "deleting"
    """List of all deleted topics. The tier may still have some of their segments."""
    LITE = "lite"
    """Consume queue units of many lite topics in one object (`message.lite_runs`)."""


class BackupName(NamedTuple):
    """Name of a backup. A newer backup has a greater name."""

    epoch: int
    sequence: int
    kind: BackupKind

    def __str__(self) -> str:
        return f"{self.epoch:020d}.{self.sequence:010d}.{self.kind.value}"

    @classmethod
    def parse(cls, text: str) -> BackupName | None:
        """Parse the name of a file or object. Returns None if it is not the name of a backup."""
        match = _NAME.fullmatch(text)
        if match is None or match[3] not in {kind.value for kind in BackupKind}:
            return None
        return cls(int(match[1]), int(match[2]), BackupKind(match[3]))


@runtime_checkable
class BackupPlace(Protocol):
    """Provider that keeps backups. Optional. A stored backup never changes."""

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        """List the backups of a broker, oldest first. Raises Unavailable."""

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        """Return the content of a backup, or None if it does not exist. Raises Unavailable."""

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        """Store a backup atomically. It becomes valid with the next `WriterEpoch.confirm`. Raises
        Unavailable, also if a backup with this name and different content exists. The caller must
        then use another name."""

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        """Delete backups. Idempotent. Raises Unavailable."""


@runtime_checkable
class RangedBackups(BackupPlace, Protocol):
    """BackupPlace that can read part of a backup. Optional."""

    def read_backup_range(
        self, broker_name: str, name: BackupName, position: int, length: int
    ) -> bytes | None:
        """Return `length` bytes of a backup from `position`, or fewer at its end. Returns None if
        the backup does not exist. Raises Unavailable."""
        ...


@runtime_checkable
class ListedBackups(Protocol):
    """Provider that finds backups while it lists segments, without extra requests. Optional."""

    def find_listed_backups(self, broker_name: str) -> Sequence[BackupName] | None:
        """Return the backups found by the last full listing of a broker. Returns None if there was
        no full listing yet."""
