"""Whether the process that holds a writer epoch has ended, as far as this system can tell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")


def describe_process() -> dict[str, object]:
    """Describe this process for `has_ended`: its number, and a name that no other one ever has
    (None where the system does not tell)."""
    pid = os.getpid()
    space, start = _find_space(), _find_start(pid)
    name = None if space is None or start is None else f"{space}:{pid}:{start}"
    return {"pid": pid, "process": name}


def has_ended(description: Mapping[str, object]) -> bool:
    """Tell whether a process that described itself so has surely ended: it ran on this very system,
    where it is no more. One that is hidden, or ran elsewhere, may live."""
    name, pid = description.get("process"), description.get("pid")
    space = _find_space()
    if not isinstance(name, str) or not isinstance(pid, int) or pid <= 0 or space is None:
        return False
    if not name.startswith(f"{space}:{pid}:"):
        return False
    if not _exists(pid):
        return True
    start = _find_start(pid)  # None: /proc hides the processes of others (`hidepid`)
    return start is not None and (name != f"{space}:{pid}:{start}" or _is_left_behind(pid))


def _find_space() -> str | None:
    """This start of the machine and this space of process numbers and times; None where /proc does
    not tell, or is that of another space."""
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):  # noqa: PTH115 - not resolved
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        numbers = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    try:
        times = (_PROC / "self/ns/time").stat().st_ino
    except OSError:
        times = 0  # a kernel without them
    return f"{boot}:{numbers}.{times}"


def _exists(pid: int) -> bool:
    """A signal finds a process that /proc does not show."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _find_start(pid: int) -> str | None:
    try:
        return _read_stat(pid)[19]
    except (OSError, IndexError):
        return None


def _is_left_behind(pid: int) -> bool:
    """Whether it has ended, with all of its threads, and its parent has not asked how."""
    try:
        return _read_stat(pid)[0] in {"Z", "X"} and len(list((_PROC / f"{pid}/task").iterdir())) < 2
    except (OSError, IndexError):
        return False


def _read_stat(pid: int) -> list[str]:
    """The fields behind the command's name: state, parent, …"""
    return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
