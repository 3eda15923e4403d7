"""Listing and expiry of the journals of interrupted jobs. A successful job deletes its journal. The
others belong to jobs that were killed, stopped or failed, and the same command continues with them.
Old journals in the user's state directory expire, except for jobs that write into a tier. Without
their journal, finished steps may be repeated."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.disk.locks import HELD, lock_file, unlock_file
from tieredstore.disk.user_folders import require_user_folder
from tieredstore.errors import Busy, Invalid

KEEP_VARIABLE = "TIEREDSTORE_JOURNAL_DAYS"
DEFAULT_KEEP_DAYS = 30
DAY_MS = 86_400_000
EXPIRING = frozenset({"export", "compact-export", "report", "verify"})
"""Jobs that only lose time if they start from the beginning, because they do not write into a tier,
or because the target of the export records where to continue."""
_NAME = re.compile(r"([a-z][a-z-]*)-[0-9a-f]{16}", re.ASCII)
_PIECE_BYTES = 1 << 20
_PLACES = ("target", "to", "table", "tier")
"""Names of job arguments. A list of journals shows, for each job, the first of these arguments that
the job has."""


@dataclass(frozen=True, slots=True)
class KeptJournal:
    """Journal file in a folder. `target`: tier or store of the job, if the journal names it.
    `size_bytes`: size of the journal and its staged files. `changed_ms`: end of the last step,
    epoch ms."""

    path: Path
    job: str
    target: str
    steps: int
    size_bytes: int
    changed_ms: int
    is_running: bool

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def expires(self) -> bool:
        """Whether the journal expires in the user's state directory."""
        return self.job in EXPIRING


def state_directory() -> Path:
    """Return the default folder of the user's journals. Raises Invalid without a home folder."""
    folder = require_user_folder("XDG_STATE_HOME", ".local/state", or_else="give --work")
    return folder / "tieredstore" / "jobs"


def keep_days() -> int:
    """Return the retention of unused journals in days. 0 means for ever. Raises Invalid."""
    given = os.environ.get(KEEP_VARIABLE, "").strip()
    if not given:
        return DEFAULT_KEEP_DAYS
    if not re.fullmatch(r"\d{1,6}", given, re.ASCII):
        raise Invalid(f"{KEEP_VARIABLE}: expected a number of days, 0 for ever, found {given!r}")
    return int(given)


def list_journals(folder: Path) -> list[KeptJournal]:
    """Return the journals of a folder, oldest first. Empty if the folder is missing."""
    found = []
    for path in _journal_files(folder):
        with suppress(FileNotFoundError):  # The job has ended in the meantime.
            found.append(_look_at(path))
    return sorted(found, key=lambda journal: (journal.changed_ms, journal.name))


def find_journals(folder: Path, names: list[str]) -> list[KeptJournal]:
    """Return the journals with the given names. Raises Invalid for a missing journal."""
    known = {journal.name: journal for journal in list_journals(folder)}
    missing = [name for name in names if name not in known]
    if missing:
        there = ", ".join(known) or "none"
        raise Invalid(f"{folder}: no journal {missing[0]!r}. It has: {there}", path=str(folder))
    return [known[name] for name in dict.fromkeys(names)]


def forget_journal(path: Path) -> bool:
    """Delete a journal and its staged files. Return False if it is missing. Raises Busy."""
    if not path.exists():
        return False
    try:
        lock = lock_file(path, 0o600)
    except BlockingIOError:
        raise Busy(f"journal {path}: its job is running. Stop it first", path=str(path)) from None
    try:
        # The journal is deleted last: after a kill it is found again, and deleted again.
        shutil.rmtree(staging_beside(path), ignore_errors=True)
        path.unlink(missing_ok=True)
    finally:
        unlock_file(lock)
    return True


def forget_old_journals(
    folder: Path, days: int, *, but: Path | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[Path]:
    """Delete journals that were unused for `days`, and return their paths. Only journals whose loss
    costs nothing but time are deleted. `but`: journal that a run is about to continue. `days`: 0
    deletes none."""
    gone: list[Path] = []
    if not days:
        return gone
    cutoff_ms = clock.now_ms() - days * DAY_MS
    for path in _journal_files(folder):
        with suppress(OSError, Busy):  # A new run handles its own journal.
            if path == but or _job_of(path) not in EXPIRING or _changed_ms(path) >= cutoff_ms:
                continue
            if forget_journal(path):
                gone.append(path)
    return gone


def staging_beside(path: Path) -> Path:
    """Return the default folder for files that a job keeps between steps."""
    return path.with_suffix(".staging").absolute()


def _journal_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.jsonl") if _NAME.fullmatch(path.stem))


def _job_of(path: Path) -> str:
    found = _NAME.fullmatch(path.stem)
    return "" if found is None else found[1]


def _changed_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def _look_at(path: Path) -> KeptJournal:
    lines, size = 0, 0
    with path.open("rb") as file:
        first = file.readline()
        while piece := file.read(_PIECE_BYTES):
            lines += piece.count(b"\n")
        size = file.tell()
    staged = (entry for entry in staging_beside(path).rglob("*") if entry.is_file())
    for entry in staged:
        with suppress(FileNotFoundError):
            size += entry.stat().st_size
    return KeptJournal(
        path, _job_of(path), _target_of(first), lines, size, _changed_ms(path), _is_running(path)
    )


def _target_of(line: bytes) -> str:
    """Return the job's target from the first line of a file, or "" if the file is not a journal."""
    try:
        identity = orjson.loads(line)
    except ValueError:
        return ""
    if not isinstance(identity, dict):
        return ""
    return next((str(identity[name]) for name in _PLACES if identity.get(name)), "")


def _is_running(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                return True
            raise
    return False
