"""The journals of jobs that were interrupted: which there are, and how they go.

A job that ends well takes its journal with it. What is left is of jobs that were killed, stopped or
failed, and that the same command goes on with. The ones in the user's state directory go by
themselves when they have been left alone for long, but for those of jobs that write into a tier:
there the journal alone knows what is done, and a run without it may do it twice.
"""

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
from tieredstore.errors import Busy, Invalid

KEEP_VARIABLE = "TIEREDSTORE_JOURNAL_DAYS"
DEFAULT_KEEP_DAYS = 30
DAY_MS = 86_400_000
EXPIRING = frozenset({"export", "compact-export", "report", "verify"})
"""Jobs that begin anew at no loss but of time: they write nothing into a tier, and an export's
target says where it goes on."""
_NAME = re.compile(r"([a-z][a-z-]*)-[0-9a-f]{16}", re.ASCII)
_PIECE_BYTES = 1 << 20
_PLACES = ("target", "to", "table", "tier")
"""What of a job's arguments tells a reader which one it is, the first that is there."""


@dataclass(frozen=True, slots=True)
class KeptJournal:
    """A journal in a folder, by its file. target: what the job was on, as far as the journal says.
    size_bytes: with what is staged beside it. changed_ms: when its last step ended, epoch ms."""

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
        """Whether it goes by itself, in the user's state directory."""
        return self.job in EXPIRING


def state_directory() -> Path:
    """Return where the user's journals are unless a job is told otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tieredstore" / "jobs"


def keep_days() -> int:
    """Return for how many days a journal that nobody goes on with is kept; 0 for ever. Raises
    Invalid."""
    given = os.environ.get(KEEP_VARIABLE, "").strip()
    if not given:
        return DEFAULT_KEEP_DAYS
    if not re.fullmatch(r"\d{1,6}", given, re.ASCII):
        raise Invalid(f"{KEEP_VARIABLE}: expected a number of days, 0 for ever, found {given!r}")
    return int(given)


def list_journals(folder: Path) -> list[KeptJournal]:
    """Return the journals of a folder, the oldest first; none where it is missing."""
    found = []
    for path in _journal_files(folder):
        with suppress(FileNotFoundError):  # its job has ended
            found.append(_look_at(path))
    return sorted(found, key=lambda journal: (journal.changed_ms, journal.name))


def find_journals(folder: Path, names: list[str]) -> list[KeptJournal]:
    """Return the journals of those names. Raises Invalid for one that is not there."""
    known = {journal.name: journal for journal in list_journals(folder)}
    missing = [name for name in names if name not in known]
    if missing:
        there = ", ".join(known) or "none"
        raise Invalid(f"{folder}: no journal {missing[0]!r}; there are: {there}", path=str(folder))
    return [known[name] for name in dict.fromkeys(names)]


def forget_journal(path: Path) -> bool:
    """Delete a journal with what is staged beside it; False where there is none (any more). Raises
    Busy while its job runs."""
    if not path.exists():
        return False
    try:
        lock = lock_file(path, 0o600)
    except BlockingIOError:
        raise Busy(f"journal {path}: its job is running; stop it first", path=str(path)) from None
    try:
        # The journal last: one without what was staged is found again, and forgotten again.
        shutil.rmtree(staging_beside(path), ignore_errors=True)
        path.unlink(missing_ok=True)
    finally:
        unlock_file(lock)
    return True


def forget_old_journals(
    folder: Path, days: int, *, but: Path | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[Path]:
    """Delete the journals that nobody went on with for `days`, where their jobs lose nothing but
    time; return their paths. but: one that a run is about to take up. days: 0 deletes none."""
    gone: list[Path] = []
    if not days:
        return gone
    cutoff_ms = clock.now_ms() - days * DAY_MS
    for path in _journal_files(folder):
        with suppress(OSError, Busy):  # a run that begins cares for its own journal alone
            if path == but or _job_of(path) not in EXPIRING or _changed_ms(path) >= cutoff_ms:
                continue
            if forget_journal(path):
                gone.append(path)
    return gone


def staging_beside(path: Path) -> Path:
    """Return where a job puts files between its steps, unless it is told otherwise."""
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
    """What the first line says of the job; empty for a line that is no journal's."""
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
