"""The backups of a broker's files in a Posix tier: a folder whose name begins with a dot, so that
it is no topic; Java never lists and never sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tieredstore.contracts.backups import BACKUP_FOLDER, BackupName
from tieredstore.disk.errors import RETRY_LATER, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Unavailable


class PosixBackups:
    """Those of one broker. folder: the broker's, in the tier."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, BACKUP_FOLDER)

    def list(self) -> Sequence[BackupName]:
        with wrap_os_errors("list", self._folder, invalid=RETRY_LATER):
            paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        names = (BackupName.parse(path.name) for path in paths)
        return sorted(name for name in names if name is not None)

    def read(self, name: BackupName) -> bytes | None:
        path = self._folder / str(name)
        with wrap_os_errors("read", path, invalid=RETRY_LATER), suppress(FileNotFoundError):
            return FILES.read(path)
        return None

    def write(self, name: BackupName, data: bytes) -> None:
        path = self._folder / str(name)
        with wrap_os_errors("write", path, invalid=RETRY_LATER):
            if path.exists():
                raise Unavailable(f"{path}: is there already", path=str(path))
            FILES.make_directory(self._folder)
            FILES.replace_file(path, data)

    def delete(self, names: Iterable[BackupName]) -> None:
        for name in names:
            path = self._folder / str(name)
            with wrap_os_errors("delete", path, invalid=RETRY_LATER):
                FILES.unlink(path)
