"""Metadata tables, stored on disk in a JSON file and its journal. Each change has a version number.
A durable change is on disk once its version is in a new file or in the synced journal. Waiting
threads share a write."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tieredstore.clock import Clock
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FileOperations, Stamp
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.metadata.journal import FORMAT_VERSION, Journal
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.parts import CapturedPart, Image, Tables
from tieredstore.metadata.snapshot_files import SnapshotFiles

_LOG = logging.getLogger(__name__)
_PARTS_AT_ONCE = 4
"""Number of table parts copied while the lock is held: about 1,000 rows in 0.5 ms."""
_LINES_AT_ONCE_BYTES = 64 << 10
"""Maximum number of journal bytes written under the lock after replacing a metadata file."""
_LOADS = 10
"""Maximum number of attempts to load the files while another process keeps replacing them."""
_JOURNAL_READ_FACTOR = 4
"""Maximum size of a journal that is read, as a multiple of the size at which this program compacts
it. A larger journal was written by another program."""


class KeptTables:
    """Tables with their lock and their files. Readers hold `lock`. A writer takes the lock with
    `lock_for_change`, calls `note_change` for a durable change or `note_later` for sizes and times,
    releases the lock, and calls `settle`. While the lock is held, nothing is encoded and only
    journal lines are written."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        operations: FileOperations,
        limits: Limits,
        *,
        read_only: bool,
    ) -> None:
        self.tables = Tables()
        self.lock = threading.RLock()  # tables, versions, journal
        self.journal = Journal(path.with_name(f"{path.name}.journal"), operations)
        self._path = path
        self._read_only = read_only
        self._limits = limits
        self._operations = operations
        self._files = SnapshotFiles(path, operations, limits, clock)
        self._file_lock = threading.Lock()  # one snapshot at a time, taken before _lock
        self._batch = threading.local()
        self._version = 0
        self._structure_version = 0  # the last change that must be in the main file
        self._stored_version = 0  # version of the main file
        self._synced_version = 0  # version on disk, in the file or the journal
        self._rewrite_version = 0  # the last change that the journal cannot express
        self._loaded_version = 0  # of all loaded entries, to be on disk before anything counts
        self._journals_structure = False
        self._loaded = False
        self._loaded_as: object = None  # version and origin of the loaded files: see `load`
        self._journal_usable = False
        self._compaction_due = False
        self._carried: bytearray | None = None  # journal lines while a snapshot is written
        self._is_unsure = False  # whether the main file is the one that the journal extends
        self._carried_bytes = 0  # number of lines, those written during a snapshot included

    def load(self) -> None:
        with self._file_lock, self.lock:
            stamps = self._stamps()
            if self._loaded and self._loaded_as == (stamps, self._version):
                return  # no thread has changed anything since
            self.journal.close()
            for left in reversed(range(_LOADS)):
                before = stamps
                try:
                    self._load()
                    stamps = self._stamps()
                except Corrupt:
                    stamps = self._stamps()
                    if not left or stamps == before:
                        raise
                else:
                    # A new file between the two reads: the journal has only later changes.
                    if stamps[:2] == before[:2]:
                        break
            else:
                raise Unavailable(f"{self._path}: replaced each time it was read: try again")
            self._loaded_as = (before, self._version)

    def _load(self) -> None:
        snapshot = self._files.load(self._find_extended())
        self.tables = snapshot.tables
        self._journal_usable = self.journal.replay(
            snapshot, self._files.find_former, self._journal_limit_bytes, read_only=self._read_only
        )
        self._loaded = True
        self._compaction_due = False
        self._version += 1
        self._structure_version = self._stored_version = self._version
        self._synced_version = self._rewrite_version = self._version
        if self.journal.size_bytes:
            self._version += 1  # `flush` writes it to the main file
            if self.journal.format == FORMAT_VERSION and not self._read_only:
                # A killed process may have written lines that are not on disk yet.
                self._structure_version = self._version
        self._loaded_version = self._structure_version

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Set whether creations and deletions are recorded in the journal. The cost of a record
        does not depend on the size of the tables. A long journal is compacted into a new metadata
        file. Use it only if no Java broker opens the tier, because Java ignores the journal."""
        with self.lock:
            self._journals_structure = is_wanted

    def _stamps(self) -> list[Stamp | None]:
        try:
            paths = (*self._files.paths, self.journal.path)
            return [self._operations.stamp(path) for path in paths]
        except OSError as error:
            raise translate_os_error(error, "stat", self._path, invalid=RETRY_LATER) from error

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the changes made in the block together. This is not a transaction: if an exception
        is raised, earlier changes are kept."""
        self._batch.depth = self._depth() + 1
        try:
            yield
        except Exception:
            self._batch.depth -= 1
            self.settle()
            raise
        except BaseException:
            self._batch.depth -= 1
            raise
        self._batch.depth -= 1
        self.settle()

    def lock_for_change(self) -> AbstractContextManager[object]:
        """Return the lock to hold during a change. Raises Invalid if the tables are read-only."""
        if self._read_only:
            raise Invalid(f"{self._path} was opened read-only", path=str(self._path))
        if not self._loaded:
            # writing now would replace the stored tables by almost empty ones
            raise Invalid(f"{self._path}: load() must come before changes", path=str(self._path))
        return self.lock

    def note_change(self, make_line: Callable[[], bytes] | None = None) -> int:
        """Record a change that must be durable before the caller returns, and return its version.
        `make_line`: returns the journal line. Without it, the change requires a new file."""
        self._version += 1
        self._structure_version = self._version
        may_tell = self._journals_structure and self.journal.format == FORMAT_VERSION
        if make_line is None or not may_tell or not self._add_line(make_line()):
            self._rewrite_version = self._version
        return self._version

    def note_later(self, line: bytes) -> None:
        """Record a change that may be written later, through the journal."""
        self._version += 1
        if not self._add_line(line):
            self._compaction_due = True

    def _add_line(self, line: bytes) -> bool:
        """Append a line to the journal. Returns False if the journal is full or cannot be
        written."""
        if self._carried is not None:
            # Above the limit all later lines are refused, here and by the next journal.
            if self._carried_bytes > self._limits.max_journal_bytes:
                return False
            self._carried += line
            self._carried_bytes += len(line)
            return True
        if not self._journal_usable or self.journal.size_bytes > self._limits.max_journal_bytes:
            return False
        self._journal_usable = self._append(line)
        return self._journal_usable

    def _depth(self) -> int:
        return getattr(self._batch, "depth", 0)

    def settle(self, version: int | None = None) -> None:
        """Write all changes up to a version to disk. The default is the last change that must be
        durable. No-op in a batch. Call it even without a change, because an earlier write may have
        failed or may still be running."""
        if self._depth():
            return
        with self.lock:
            wanted = self._structure_version if version is None else version
            wanted = max(wanted, self._loaded_version)
            is_full = self.journal.size_bytes > self._limits.max_journal_bytes
            due, latest = self._compaction_due or is_full, self._version
        if wanted > self._synced_version and not self._sync(wanted):
            self._store(wanted)
        elif due:
            try:
                self._store(latest)
            except Unavailable as error:  # sizes and times may follow later
                _LOG.warning("%s: the journal cannot be compacted yet: %s", self._path, error)

    def _sync(self, wanted: int) -> bool:
        """Sync the journal to make the changes up to a version durable. Returns False if the
        metadata file must be written instead."""
        with self._file_lock:
            if self._synced_version >= wanted:
                return True
            with self.lock:
                version = self._version
                if not self._journal_usable or self._rewrite_version > self._stored_version:
                    return False
            try:
                self.journal.sync()
            except OSError as error:
                # The system may report the next sync as a success even if lines were lost.
                _LOG.warning("%s: cannot sync the journal: %s", self._path, error)
                with self.lock:
                    self._journal_usable = False
                return False
            self._synced_version = version
            return True

    def _store(self, wanted: int) -> None:
        with self._file_lock:
            if self._stored_version >= wanted:
                return
            self._encode_stale()
            with self.lock:
                image = self.tables.capture()
                version = self._version
                self._carried, self._carried_bytes = bytearray(), 0
            is_stored = is_usable = False
            try:
                digest = self._write(image)
                is_stored = True
                is_usable = self._start_journal(digest)
            finally:
                with self.lock:
                    lines, self._carried = self._carried, None
                    if is_stored:
                        self._stored_version = self._synced_version = version
                        self._compaction_due = False
                    self._journal_usable = is_usable and self._append(lines)

    def _write(self, image: Image) -> str:
        data = image.encode()
        for part in image.parts():
            with self.lock:
                part.keep()
        if self._is_unsure and self._find_extended() != self._files.find_main():
            self.journal.is_superseded = True
        try:
            self.journal.expect_replacement()
        except OSError as error:
            raise translate_os_error(
                error, "set aside", self.journal.path, invalid=RETRY_LATER
            ) from error
        self._is_unsure = True
        digest = self._files.replace(data, is_extended=self.journal.format == FORMAT_VERSION)
        self._is_unsure = False
        return digest

    def _find_extended(self) -> str:
        return self.journal.find_snapshot(self._journal_limit_bytes)

    @property
    def _journal_limit_bytes(self) -> int:
        return self._limits.max_journal_bytes * _JOURNAL_READ_FACTOR

    def _encode_stale(self) -> None:
        """Encode changed parts of the tables in small steps, to hold the lock only briefly. The
        consistent copy made afterwards then has little left to encode."""
        while True:
            with self.lock:
                stale = [CapturedPart(part) for part in self.tables.find_stale(_PARTS_AT_ONCE)]
            for part in stale:
                part.encode()
            with self.lock:
                for part in stale:
                    part.keep()
            if len(stale) < _PARTS_AT_ONCE:
                return

    def _start_journal(self, digest: str) -> bool:
        """Start the journal of the new metadata file. Writes most of the changes made since the
        file's content was copied from the tables. The caller writes the rest under the lock.
        Returns False on failure."""
        try:
            self.journal.start(digest, has_structure=self._journals_structure)
        except OSError as error:
            _LOG.warning("%s: cannot start the journal: %s", self._path, error)
            return False
        while True:
            with self.lock:
                assert self._carried is not None
                if len(self._carried) <= _LINES_AT_ONCE_BYTES:
                    return True
                lines, self._carried = self._carried, bytearray()
            if not self._append(lines):
                return False

    def _append(self, lines: bytes | bytearray | None) -> bool:
        """Append lines to the journal. Returns False if a line may be torn."""
        try:
            if lines:
                self.journal.append(bytes(lines))
        except OSError as error:
            _LOG.warning("%s: cannot append to the journal: %s", self._path, error)
            return False
        return True

    def flush(self) -> None:
        if self._read_only:
            return
        with self.lock:
            version = self._version
        if version > self._stored_version:
            self._store(version)

    def close(self) -> None:
        with self._file_lock, self.lock:
            self.journal.close()
