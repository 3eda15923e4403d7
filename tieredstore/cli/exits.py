"""Exit codes, and the one place where errors become a line on stderr."""

from __future__ import annotations

import enum
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from tieredstore.cli.logs.choice import LogChoice
from tieredstore.cli.logs.saying import say
from tieredstore.errors import Busy, Corrupt, Fenced, Invalid, TieredStoreError, Unavailable


class ExitCode(enum.IntEnum):
    """What a shell sees. Documented in `docs/cli.md`."""

    OK = 0
    DAMAGE = 1
    INVALID = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    FENCED = 5
    BUSY = 6
    UNSAFE = 7
    DEGRADED = 8
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
    ExitCode.DEGRADED: "A tier needs a look.",
    ExitCode.INTERNAL: "A bug: please report the line.",
    ExitCode.HUNG_UP: "Stopped by SIGHUP: its terminal was closed.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C, or interrupted by a second one.",
    ExitCode.TERMINATED: "Stopped by SIGTERM.",
}
"""In a line each, for `--help`."""


class OutputClosed(Exception):
    """Whoever read our output has stopped (`| head`). Not an error."""


_CODES: tuple[tuple[type[TieredStoreError], ExitCode], ...] = (
    (Corrupt, ExitCode.DAMAGE),
    (Invalid, ExitCode.INVALID),
    (Unavailable, ExitCode.UNAVAILABLE),
    (Fenced, ExitCode.FENCED),
    (Busy, ExitCode.BUSY),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the code for an error that ends a verb."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError):
        return ExitCode.UNAVAILABLE
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return ExitCode.INTERNAL


def describe_error(error: BaseException) -> str:
    """Return an error as one line: what, where, what to do. Never a traceback or a line break."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'system'}: {error.strerror or text}"
    elif not isinstance(error, TieredStoreError):
        text = (
            f"internal error: {type(error).__name__}: {text}; "
            "set TIEREDSTORE_TRACEBACK=1 to see where, and report it"
        )
    elif isinstance(error, Corrupt) and "tieredstore " not in text:
        text = f"{text}; run `tieredstore verify` for all damage"
    elif isinstance(error, Unavailable):
        text = f"{text}; try again"
    return text


def say_notes(error: BaseException | None, choice: LogChoice | None = None) -> None:
    """Say what goes with an error, such as the journal that it leaves, a line each on stderr."""
    for note in getattr(error, "__notes__", ()):
        say(note, choice=choice)


def end_of_stopped(received: Sequence[int], hint: str = "run it again to go on") -> ExitCode:
    """Say that signals stopped a run in good order, and return the code that a shell has for the
    first of them. hint: what to do next."""
    say(f"stopped; {hint}")
    return ExitCode(128 + (received[0] if received else signal.SIGINT))


def end_of_run(
    *, stopped: bool, received: Sequence[int], failures: Sequence[TieredStoreError]
) -> ExitCode:
    """Return the code of a run that copies, after its report was printed. received: the signals
    that stopped it. The first of `failures` is raised, each other one is printed as a line."""
    if stopped:
        return end_of_stopped(received)
    for error in failures[1:]:
        say(describe_error(error), "error")
    if failures:
        raise failures[0]
    return ExitCode.OK


def close_stdout_quietly() -> None:
    """Close stdout after a broken pipe: nothing more is written, and Python's exit does not
    complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
