"""Files of a tier's writer in its state directory.

The lock file lets only one process at a time write to the directory. `tieredstore.epochs` records
the writer epochs that were taken with the directory, as JSON. Its fields are `format`, `lock`
(inode of the lock file, which a copy of the directory does not have) and `claims` (oldest first).

A shutdown snapshot saves the next start a listing of the tier. Another file counts written bytes
for `stat` (`docs/cli.md`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.tier_identity import WriterMark
from tieredstore.contracts.usage import WrittenBytes, read_usage
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.disk.locks import is_locked, lock_file, unlock_file
from tieredstore.disk.notes import find_note, keep_note, read_note
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError
from tieredstore.tier.deleted.records import DeletedTopic, QueueEnds

LOCK_FILE = "tieredstore.lock"
RECORD_FILE = "tieredstore.epochs"
RECORD_FORMAT = 1
_MAX_OWNER_CHARS = 64
_log = logging.getLogger(__name__)


def is_held(state: Path) -> bool | None:
    """Return whether a process on this machine holds the lock of a state directory, or None if the
    system does not list locks. Does not take the lock."""
    return is_locked(state / LOCK_FILE)


class StateLock:
    """Lock of a state directory, held from `acquire` until `release` or the end of the process. The
    locked file is never deleted. It is not the `lock` file of a local store, which a Java broker
    also uses."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / LOCK_FILE
        self._fd = -1

    def acquire(self) -> None:
        """Create the directory if it is missing, and lock it. Raises Unavailable, Invalid without
        write permission, or Fenced, naming the process that holds the lock (which may be this
        process)."""
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._fd = lock_file(self._path)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            raise Fenced(
                f"state {self._state}: process {self._owner()} writes there. Wait until it ends, "
                "or stop it",
                path=str(self._path),
            ) from None
        except OSError as error:
            self.release()
            raise translate_os_error(error, "lock", self._path) from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            unlock_file(self._fd)
            self._fd = -1

    @property
    def inode(self) -> int:
        """Inode of the locked file."""
        return os.fstat(self._fd).st_ino

    def _owner(self) -> str:
        with suppress(OSError):
            return self._path.read_text(errors="replace")[:_MAX_OWNER_CHARS] or "unknown"
        return "unknown"


class _Record(msgspec.Struct, forbid_unknown_fields=False):
    format: int
    lock: int
    claims: list[str]


class StateRecord:
    """The EpochRecord of a state directory whose lock is held."""

    def __init__(
        self,
        state: Path,
        lock: StateLock,
        operations: FileOperations = FILES,
        *,
        mark: WriterMark | None = None,
    ) -> None:
        self.mark = mark
        self._path = state / RECORD_FILE
        self._lock = lock
        self._operations = operations

    def load(self) -> Sequence[str]:
        """Return the claims, oldest first. Returns an empty list if the record is missing, damaged,
        or was copied with the directory. Raises Unavailable, or Invalid for a newer format."""
        try:
            found = read_note(
                self._path, _Record, "a record of writer epochs", operations=self._operations
            )
        except Corrupt as error:
            _log.warning("%s", error)
            return ()
        if found is None:
            return ()
        if found.format > RECORD_FORMAT:
            raise Invalid(
                f"{self._path}: expected format {RECORD_FORMAT}, found {found.format}",
                path=str(self._path),
            )
        if found.lock != self._lock.inode:
            _log.warning(
                "%s: of another directory than this one, which is a copy of it (expected inode %d "
                "of %s, found %d)",
                self._path,
                found.lock,
                LOCK_FILE,
                self._lock.inode,
            )
            return ()
        return found.claims

    def save(self, claims: Sequence[str]) -> None:
        """Replace the claims durably, with a temporary file that is synced and renamed. Raises
        Invalid, Unavailable."""
        content = msgspec.json.encode(_Record(RECORD_FORMAT, self._lock.inode, list(claims)))
        try:
            self._operations.replace_file(self._path, content + b"\n")
        except OSError as error:
            raise translate_os_error(error, "write", self._path) from error


ENDS_FILE: Final = "tieredstore.ends.json"
RECORDS_LEFT_FILE: Final = "tieredstore.deleted.json"
"""Names of two files in a state directory. Java ignores them. They are written when a writer epoch
ends. The first has the ends of the queues in which each unit has its message and each message its
unit. The second has the records of deleted topics. Only the next epoch uses them, because then no
other writer can have changed the tier."""
_SNAPSHOT_FORMAT: Final = 1
S = TypeVar("S", "_Ends", "LeftRecords")


class _Ends(msgspec.Struct, frozen=True):
    """Content of ENDS_FILE. `queues`: ends of the queues, by queue path."""

    format: int
    epoch: int
    queues: dict[str, QueueEnds]


class LeftRecords(msgspec.Struct, frozen=True):
    """Content of RECORDS_LEFT_FILE: records of deleted topics, and the name of the newest version
    of the records in the tier."""

    format: int
    epoch: int
    topics: dict[str, DeletedTopic]
    newest: str = ""


def keep_clean_ends(state: Path, epoch: int, queues: Mapping[str, QueueEnds]) -> None:
    """Write the ends of the queues when an epoch ends. If the disk is full, nothing is written and
    the next start lists the tier."""
    keep_note(state / ENDS_FILE, _Ends(_SNAPSHOT_FORMAT, epoch, dict(queues)))


def find_clean_ends(state: Path, epoch: int) -> Mapping[str, QueueEnds]:
    """Return the ends of the queues that the previous epoch left for `epoch`. Empty if its writer
    did not stop cleanly or used another state directory."""
    ends = _read_snapshot(state / ENDS_FILE, _Ends)
    return ends.queues if ends is not None and ends.epoch == epoch - 1 else {}


def has_clean_ends(state: Path) -> bool:
    """Return whether the last writer that stopped cleanly with this state directory had queues in
    the tier."""
    ends = _read_snapshot(state / ENDS_FILE, _Ends)
    return ends is not None and bool(ends.queues)


def keep_clean_records(
    state: Path, epoch: int, records: Mapping[str, DeletedTopic], newest: str = ""
) -> None:
    """Write the records of deleted topics when an epoch ends. If the disk is full, nothing is
    written and the next start reads the records from the tier."""
    left = LeftRecords(_SNAPSHOT_FORMAT, epoch, dict(records), newest)
    keep_note(state / RECORDS_LEFT_FILE, left)


def note_records(state: Path, records: Mapping[str, DeletedTopic]) -> None:
    """Write the records of deleted topics during an epoch. The next epoch does not rely on them to
    be complete. It only adds them to the records in the tier, which may be an older copy."""
    keep_note(state / RECORDS_LEFT_FILE, LeftRecords(_SNAPSHOT_FORMAT, -1, dict(records)))


def find_clean_records(state: Path, epoch: int) -> LeftRecords | None:
    """Return the records of deleted topics that the previous epoch left for `epoch`. Returns None
    if its writer did not stop cleanly or used another state directory."""
    left = _read_snapshot(state / RECORDS_LEFT_FILE, LeftRecords)
    return left if left is not None and left.epoch == epoch - 1 else None


def find_left_records(state: Path) -> dict[str, DeletedTopic]:
    """Return the records of deleted topics that the last writer left in this state directory, for a
    tier that is disabled or an older copy. Some records may be missing."""
    left = _read_snapshot(state / RECORDS_LEFT_FILE, LeftRecords)
    return {} if left is None else left.topics


def _read_snapshot(path: Path, kind: type[S]) -> S | None:
    found = find_note(path, kind)
    return found if found is not None and found.format == _SNAPSHOT_FORMAT else None


WRITTEN_FILE: Final = "tieredstore.written.json"
"""Name of the file in a state directory that has the number of bytes written to the tier. Java
ignores the file."""
KEEP_INTERVAL_S: Final = 60.0


class WrittenKeeper:
    """Counts the bytes that a provider writes, and adds them to the numbers in WRITTEN_FILE. Only
    one thread at a time may use it, while the state directory is locked. Raises no errors, because
    nothing depends on these numbers."""

    def __init__(self, state: Path, provider: SegmentProvider) -> None:
        self._path = state / WRITTEN_FILE
        self._provider = provider
        self._former = WrittenBytes()
        self._kept = WrittenBytes()
        self._kept_s = time.monotonic()
        try:
            self._former = read_written_bytes(state) or WrittenBytes()
        except TieredStoreError as error:
            _log.warning("counting anew: %s", error)

    def keep_at_intervals(self) -> None:
        """Write the file, at most once every KEEP_INTERVAL_S."""
        if time.monotonic() - self._kept_s >= KEEP_INTERVAL_S:
            self.keep()

    def keep(self) -> None:
        """Write the file if a number has changed. If the disk is full, the old file is kept."""
        self._kept_s = time.monotonic()
        usage = read_usage(self._provider)
        if usage is None or usage.written == self._kept:
            return
        try:
            FILES.replace_file(self._path, msgspec.json.encode(self._former + usage.written))
            self._kept = usage.written
        except OSError as error:
            _log.debug("%s: not written: %s", self._path, error)


def read_written_bytes(state: Path) -> WrittenBytes | None:
    """Return the number of written bytes recorded in a state directory, or None. Raises
    Unavailable, or Corrupt for a damaged file."""
    return read_note(state / WRITTEN_FILE, WrittenBytes, "bytes written to a tier")
