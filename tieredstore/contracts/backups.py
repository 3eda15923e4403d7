"""BackupPlace: where a tier keeps backups of its broker's files, beside the segments.

A backup has a name that no other ever has: the writer epoch that made it (0 where epochs have no
number), its place among those of that epoch, and what is in it. So one that a writer sent before it
lost its right, and that arrives late, replaces nothing and is older than all of its successors.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

BACKUP_FOLDER = ".backups"
"""Below a broker's prefix; no topic has such a name."""
_NAME = re.compile(r"([0-9]{20})\.([0-9]{10})\.([a-z]+)", re.ASCII)


class BackupKind(enum.StrEnum):
    """What is in a backup."""

    CONFIG = "config"
    METADATA = "metadata"


class BackupName(NamedTuple):
    """Those that are greater were made later."""

    epoch: int
    sequence: int
    kind: BackupKind

    def __str__(self) -> str:
        return f"{self.epoch:020d}.{self.sequence:010d}.{self.kind.value}"

    @classmethod
    def parse(cls, text: str) -> BackupName | None:
        """Parse the name of a file or an object; None for one that is no backup's."""
        match = _NAME.fullmatch(text)
        if match is None or match[3] not in {kind.value for kind in BackupKind}:
            return None
        return cls(int(match[1]), int(match[2]), BackupKind(match[3]))


@runtime_checkable
class BackupPlace(Protocol):
    """A provider that keeps backups. Optional. None of them is ever changed."""

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        """List the backups of a broker, the oldest first. Raises Unavailable."""
        ...

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        """Read one whole; None when it is not there. Raises Unavailable."""
        ...

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        """Keep one: there is all of it, or none. Counts once the writer's right was confirmed.
        Raises Unavailable, also when the name is taken: give the next try another one."""
        ...

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        """Delete some. Idempotent. Raises Unavailable."""
        ...
