"""Copies of the deletions in runs, in the state directory of the writer. They are used at startup
if a run is lost or damaged, or the tier is an older copy."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.contracts.backups import BackupName
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt
from tieredstore.message.lite_runs import (
    UNIT_DTYPE,
    RunNotes,
    Table,
    decode_head,
    encode_run,
    find_deletions,
    sort_units,
)

FOLDER: Final = "tieredstore.lite"
"""Name of the folder in a state directory. Java ignores it."""
_log = logging.getLogger(__name__)


class LeftDeletions:
    """Copies of the deletions in runs, in files named like the runs. `is_known`: whether no store
    with another state directory has written to the tier since. Otherwise the copies are ignored."""

    def __init__(self, state: Path, *, is_known: bool) -> None:
        self._folder = state / FOLDER
        self._is_known = is_known

    def find(self, runs: Iterable[BackupName]) -> dict[int, int]:
        """Return the deletions of all runs except `runs`, by key. Damaged files are skipped. Raises
        Unavailable."""
        tables: list[Table] = []
        for name in sorted(self._list() - {*runs}) if self._is_known else ():
            path = self._folder / str(name)
            try:
                with wrap_os_errors("read", path):
                    tables.append(decode_head(FILES.read(path), str(path)).names)
            except Corrupt as error:
                _log.warning("%s: not read", error)
        return find_deletions(tables)

    def keep(self, name: BackupName, names: Table) -> None:
        """Write and sync the copy for one run. `names`: names in the run. Raises Unavailable."""
        if deleted := find_deletions([names]):
            content = sort_units(np.zeros(0, np.uint64), np.zeros(0, UNIT_DTYPE), deleted)
            path = self._folder / str(name)
            with wrap_os_errors("write", path):
                FILES.make_directory(self._folder)
                FILES.replace_file(path, encode_run(RunNotes(), content))

    def keep_only(self, runs: Mapping[BackupName, Table]) -> None:
        """Write the copies that are missing, and delete those of other runs. `runs`: names in each
        run. Raises Unavailable."""
        present = self._list()
        with wrap_os_errors("delete", self._folder):
            for name in present - runs.keys() if self._is_known else present:
                FILES.unlink(self._folder / str(name))
        for name in runs.keys() - self._list():
            self.keep(name, runs[name])
        self._is_known = True

    def _list(self) -> set[BackupName]:
        with wrap_os_errors("list", self._folder):
            paths = [*self._folder.iterdir()] if self._folder.is_dir() else []
        return {name for path in paths if (name := BackupName.parse(path.name)) is not None}
