"""`KeptTables`: the tables of the metadata, kept on disk in a JSON file and its journal.

Each change has a version. What must be on disk before its call returns is there once that version
is, in a new file or in the synced journal; threads that wait for one share it.
"""

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
from tieredstore.metadata.parts import CapturedPart
from tieredstore.metadata.snapshot_files import SnapshotFiles
from tieredstore.metadata.tables import Image, Tables

_LOG = logging.getLogger(__name__)
_PARTS_AT_ONCE = 4
"""Parts of tables that are noted for encoding under the lock: some 1,000 rows, 0.5 ms."""
_LINES_AT_ONCE_BYTES = 64 << 10
"""Journal lines that are written under the lock after a new file, at most."""
_LOADS = 10
"""How often a load reads files that another process replaces meanwhile, once per 8 MiB of changes.
"""
_JOURNAL_READ_FACTOR = 4
"""A journal is compacted at its limit; one that is this much larger was not written by us."""


class KeptTables:
    """Tables, the lock that guards them, and their files.

    Readers hold `lock`; who changes something takes it by `lock_for_change`, says so (`note_change`
    where it must be on disk soon, `note_later` for sizes and times), gives it back, and calls
    `settle`. Nothing is encoded, and no file is written but lines of the journal, while it is held.
    """

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
        self._file_lock = threading.Lock()  # one snapshot at a time; taken before _lock
        self._batch = threading.local()
        self._version = 0
        self._structure_version = 0  # the last change that must be in the main file
        self._stored_version = 0  # what the main file holds
        self._synced_version = 0  # what is on disk, there or in the journal
        self._rewrite_version = 0  # the last change that no journal can tell
        self._loaded_version = 0  # all that was found, which must be on disk before anything counts
        self._journals_structure = False
        self._loaded = False
        self._loaded_as: object = None  # which files, and what they made: see `load`
        self._journal_usable = False
        self._compaction_due = False
        self._carried: bytearray | None = None  # journal lines while a snapshot is written
        self._is_unsure = False  # whether the main file is the one that the journal extends
        self._carried_bytes = 0  # of them, those that were written meanwhile too

    def load(self) -> None:
        with self._file_lock, self.lock:
            stamps = self._stamps()
            if self._loaded and self._loaded_as == (stamps, self._version):
                return  # nobody has changed anything since
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
                    # A new file between the two: the journal tells only what came after it.
                    if stamps[:2] == before[:2]:
                        break
            else:
                raise Unavailable(f"{self._path}: replaced each time it was read: try again")
            self._loaded_as = (before, self._version)

    def _load(self) -> None:
        """Read the file, then the journal."""
        snapshot = self._files.load(self._find_extended())
        self.tables = snapshot.tables
        self._journal_usable = self.journal.replay(
            snapshot,
            self._files.find_former,
            self._journal_limit_bytes,
            read_only=self._read_only,
        )
        self._loaded = True
        self._compaction_due = False
        self._version += 1
        self._structure_version = self._stored_version = self._version
        self._synced_version = self._rewrite_version = self._version
        if self.journal.size_bytes:
            self._version += 1  # `flush` brings it to the main file
            if self.journal.format == FORMAT_VERSION and not self._read_only:
                # A process that was killed may have told there what is not on disk yet.
                self._structure_version = self._version
        self._loaded_version = self._structure_version

    def journal_structure(self, *, is_wanted: bool) -> None:
        """Let the journal tell what comes and goes, which takes no longer however much there is; a
        new file is written when the journal is long. Only where no Java broker opens the tier,
        which knows of no journal."""
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
        """Write the changes of the block once. Not a transaction: what was changed before an
        exception stays changed."""
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
        """Return the lock, to be taken. Raises Invalid where nothing may be changed."""
        if self._read_only:
            raise Invalid(f"{self._path} was opened read-only", path=str(self._path))
        if not self._loaded:
            # writing now would replace what is there by next to nothing
            raise Invalid(f"{self._path}: load() must come before changes", path=str(self._path))
        return self.lock

    def note_change(self, make_line: Callable[[], bytes] | None = None) -> int:
        """Note a change that must be on disk before its call returns; returns its version.
        make_line: makes what tells it in a journal; None: it takes a new file."""
        self._version += 1
        self._structure_version = self._version
        may_tell = self._journals_structure and self.journal.format == FORMAT_VERSION
        if make_line is None or not may_tell or not self._add_line(make_line()):
            self._rewrite_version = self._version
        return self._version

    def note_later(self, line: bytes) -> None:
        """Note a change that may follow later: it goes to the journal."""
        self._version += 1
        if not self._add_line(line):
            self._compaction_due = True

    def _add_line(self, line: bytes) -> bool:
        """Whether the journal has it: not where that is full, or cannot be written to."""
        if self._carried is not None:
            # Behind the limit all that follows is refused, here and by the journal that begins.
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
        """Outside a batch: have that version (by default the last change of structure) on disk.

        Also when the call changed nothing: an earlier one may have failed to write its change, or
        may be about to.
        """
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
        """Bring that version to disk by the journal; False where the file has to be written."""
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
                # The system may call the next sync a success, whatever became of the lines.
                _LOG.warning("%s: cannot sync the journal: %s", self._path, error)
                with self.lock:
                    self._journal_usable = False
                return False
            self._synced_version = version
            return True

    def _store(self, wanted: int) -> None:
        """Write the main file unless another thread has, up to version `wanted`."""
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
        """Make it the main file; returns its SHA-256. Raises Unavailable."""
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
        """Encode what has changed, little by little: nobody waits for the lock for long, and little
        is left for the moment at which all must be as it was at one time."""
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
        """Begin the journal of the file, with most of what has changed since: the rest is little,
        and goes there under the lock. False where that fails."""
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
        """Whether the journal has them: a line is torn otherwise."""
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
