"""The metadata JSON on disk: the main file, its `.bak`, and how one replaces the other.

At every moment at least one of the two is whole, whatever was written to the disk in which order.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from tieredstore.clock import Clock
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Corrupt
from tieredstore.metadata.json_format import Limits, parse
from tieredstore.metadata.own_format import parse_own
from tieredstore.metadata.tables import Tables

_LOG = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """What was loaded. digest: SHA-256 of the file's bytes in hex, "" when there was no file;
    is_backup: whether that file was `.bak`, as the main file is lost."""

    tables: Tables
    digest: str
    is_backup: bool = False


class SnapshotFiles:
    """Loads and replaces the metadata file. Not thread-safe."""

    def __init__(
        self, path: Path, operations: FileOperations, limits: Limits, clock: Clock
    ) -> None:
        self._main = path
        self._backup = path.with_name(f"{path.name}.bak")
        self._operations = operations
        self._limits = limits
        self._clock = clock
        self._main_is_good = False
        self._main_is_bad = False

    @property
    def paths(self) -> tuple[Path, Path]:
        """The main file and its backup."""
        return self._main, self._backup

    def load(self, own_digest: str = "") -> Snapshot:
        """Read the main file; `.bak` when it is missing, empty or bad; return empty tables when
        neither is there. Change nothing on disk. own_digest: SHA-256, in hex, of the file that this
        program wrote last.

        Raises Corrupt when there is no good file, Unavailable when one cannot be read.
        """
        self._main_is_good = self._main_is_bad = False
        try:
            snapshot = self._load(self._main, own_digest)
        except Corrupt as error:
            return self._load_backup(error)
        if snapshot is None:
            return self._load_backup(None)
        self._main_is_good = True
        return snapshot

    def find_main(self) -> str:
        """Find the SHA-256 of the main file, in hex; "" where there is none. Raises Unavailable."""
        return self._find_digest(self._main)

    def find_former(self) -> str:
        """Find that of `.bak`."""
        return self._find_digest(self._backup)

    def _find_digest(self, path: Path) -> str:
        try:
            if self._operations.size(path) is None:
                return ""
            return hashlib.sha256(self._operations.read(path)).hexdigest()
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error

    def replace(self, data: bytes, *, is_extended: bool = False) -> str:
        """Make `data` the main file, durably; the former one becomes `.bak`, or if it is bad
        `.corrupt-<ms>`. is_extended: whether a journal tells structure of the former one, which
        must be known to be that until there is another journal. Returns its SHA-256.

        Raises Unavailable; then the main file is the former or the new one.
        """
        temporary = self._main.with_name(f"{self._main.name}.tmp")
        try:
            self._operations.make_directory(self._main.parent)
            self._operations.write_synced(temporary, data)
            if self._main_is_good:
                self._back_up()
                if is_extended:
                    self._operations.sync_directory(self._main.parent)
            elif self._main_is_bad:
                self._set_aside()
            self._operations.rename(temporary, self._main)
            self._main_is_good = True
            self._operations.sync_directory(self._main.parent)
        except OSError as error:
            raise translate_os_error(error, "replace", self._main, invalid=RETRY_LATER) from error
        return hashlib.sha256(data).hexdigest()

    def _back_up(self) -> None:
        """Another name for the main file, so that no moment is without it."""
        temporary = self._backup.with_name(f"{self._backup.name}.tmp")
        self._operations.unlink(temporary)
        if not self._operations.link(self._main, temporary):
            self._operations.write_synced(temporary, self._operations.read(self._main))
        self._operations.rename(temporary, self._backup)

    def _load(self, path: Path, own_digest: str = "") -> Snapshot | None:
        try:
            size = self._operations.size(path)
            if not size:
                return None
            if size > self._limits.max_file_bytes:
                raise Corrupt(
                    f"{path}: {size} bytes, more than the limit of {self._limits.max_file_bytes}",
                    path=str(path),
                )
            data = self._operations.read(path)
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
        digest = hashlib.sha256(data).hexdigest()
        tables = parse_own(data, self._limits.max_segments) if digest == own_digest else None
        return Snapshot(tables or parse(data, str(path), self._limits), digest)

    def _load_backup(self, main_error: Corrupt | None) -> Snapshot:
        advice = (
            "nothing was changed; put a good copy in place, or rebuild the metadata from the tier"
        )
        try:
            snapshot = self._load(self._backup)
        except Corrupt as error:
            first = f"{main_error}" if main_error else f"{self._main} is missing or empty"
            raise Corrupt(f"{first}; {error}; {advice}", path=str(self._main)) from error
        if snapshot is None:
            if main_error is not None:
                raise Corrupt(
                    f"{main_error}; {self._backup} is missing or empty; {advice}",
                    path=str(self._main),
                )
            return Snapshot(Tables(), "")
        if main_error is None:
            _LOG.warning("%s is missing or empty: %s is used", self._main, self._backup)
        else:
            self._main_is_bad = True
            _LOG.warning("%s; %s is used", main_error, self._backup)
        return snapshot._replace(is_backup=True)

    def _set_aside(self) -> None:
        now_ms = self._clock.now_ms()
        kept = self._main.with_name(f"{self._main.name}.corrupt-{now_ms}")
        while self._operations.size(kept) is not None:
            now_ms += 1
            kept = self._main.with_name(f"{self._main.name}.corrupt-{now_ms}")
        self._operations.rename(self._main, kept)
        self._operations.sync_directory(kept.parent)
        self._main_is_bad = False
        _LOG.warning("%s: the bad file is kept as %s", self._main, kept)
