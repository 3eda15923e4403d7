"""Exit codes, and conversion of errors to one line on stderr."""

from __future__ import annotations

import enum
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tieredstore.cli.logs.choice import LogChoice, say
from tieredstore.disk.errors import is_lasting
from tieredstore.errors import (
    Busy,
    Corrupt,
    Fenced,
    Invalid,
    Refused,
    TieredStoreError,
    Unavailable,
)


class ExitCode(enum.IntEnum):
    """Exit code of a command, documented in `docs/cli.md`."""

    OK = 0
    DAMAGE = 1
    INVALID = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    FENCED = 5
    BUSY = 6
    UNSAFE = 7
    DEGRADED = 8
    NOT_INDEXED = 9
    INTERNAL = 70
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "Done.",
    ExitCode.DAMAGE: "Stored bytes are damaged.",
    ExitCode.INVALID: "Wrong usage or configuration, or something named is not there.",
    ExitCode.NOT_FOUND: "No message was found.",
    ExitCode.UNAVAILABLE: "A file or backend cannot be reached now: try again.",
    ExitCode.FENCED: "Another writer owns the tier.",
    ExitCode.BUSY: "A limit is reached: try again later.",
    ExitCode.UNSAFE: "It is not safe to write there.",
    ExitCode.DEGRADED: "A tier needs attention.",
    ExitCode.NOT_INDEXED: "No message was found, and some unindexed messages were not read.",
    ExitCode.INTERNAL: "A bug: please report the line.",
    ExitCode.HUNG_UP: "Stopped by SIGHUP: its terminal was closed.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C, or interrupted by a second one.",
    ExitCode.TERMINATED: "Stopped by SIGTERM.",
}
"""Meaning of each exit code, as `--help` shows it."""


_CODES: tuple[tuple[type[TieredStoreError], ExitCode], ...] = (
    (Corrupt, ExitCode.DAMAGE),
    (Invalid, ExitCode.INVALID),
    (Refused, ExitCode.INVALID),
    (Unavailable, ExitCode.UNAVAILABLE),
    (Fenced, ExitCode.FENCED),
    (Busy, ExitCode.BUSY),
)


_OF_STORES: Final = frozenset(
    {
        "commitlog",
        "consumequeue",
        "consumequeue_rocksdb",
        "consumequeue_ext",
        "batchconsumequeue",
        "index",
        "checkpoint",
        "config",
    }
)
"""Names of the folders and files in a broker's store."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a verb."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError):
        return ExitCode.INVALID if is_lasting(error) else ExitCode.UNAVAILABLE
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return ExitCode.INTERNAL


def describe_error(error: BaseException) -> str:
    """Describe an error in one line: what failed, on which object, and what to do."""
    text = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'system'}: {error.strerror or text}"
    elif not isinstance(error, TieredStoreError):
        text = (
            f"internal error: {type(error).__name__}: {text}. "
            "Set TIEREDSTORE_TRACEBACK=1 for a traceback, and report it."
        )
    elif isinstance(error, Corrupt) and "tieredstore " not in text:
        store = _find_store(error)
        if store is None:
            text = f"{text}. Run `tieredstore verify` for all damage."
        else:
            text = f"{text}. Run `tieredstore store check {store}` for a plan of recovery."
    elif isinstance(error, Unavailable) and not isinstance(error, Refused):
        text = f"{text}. Try again."
    return text


_about: list[Path] = []


def note_store(store: Path | None) -> None:
    """Set the store that a damage error without a path is about. With None, such an error is about
    a tier."""
    _about[:] = [] if store is None else [store]


def _find_store(error: Corrupt) -> Path | None:
    """Return the root of the damaged store, or None if the damage is in a tier."""
    if error.path is None:
        return _about[0] if _about else None
    path = Path(error.path)
    for folder in (path, *path.parents):
        inside = path.relative_to(folder).parts[:1]
        if (folder / "commitlog").is_dir() and (not inside or inside[0] in _OF_STORES):
            return folder
    return None


def say_notes(error: BaseException | None, choice: LogChoice | None = None) -> None:
    """Print the notes of an error on stderr, one per line."""
    for note in getattr(error, "__notes__", ()):
        say(note, choice=choice)


def end_of_stopped(received: Sequence[int], hint: str = "run it again to continue") -> ExitCode:
    """Print that a signal stopped the run cleanly, and return the exit code for the first signal.
    `received`: numbers of the signals received. `hint`: what to do next."""
    say(f"stopped: {hint}")
    return ExitCode(128 + (received[0] if received else signal.SIGINT))


def end_of_run(
    *, stopped: bool, received: Sequence[int], failures: Sequence[TieredStoreError]
) -> ExitCode:
    """Return the exit code of `copy` or `offload`, after the report was printed. `received`:
    numbers of the signals that stopped the run. Raises the first of `failures` and prints the
    others."""
    if stopped:
        return end_of_stopped(received)
    for error in failures[1:]:
        say(describe_error(error), "error")
    if failures:
        raise failures[0]
    return ExitCode.OK


def close_stdout_quietly() -> None:
    """Redirect stdout to the null device after a broken pipe, so that Python reports no error at
    exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
