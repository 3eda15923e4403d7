"""What this process and all below it use: a JVM, its Python workers, processes of a pool."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _STARTED = 1, 19
"""Fields of /proc/PID/stat behind the name: the parent, and the time at which a process began (its
number is used again)."""


@dataclass(frozen=True, slots=True)
class Used:
    """CPU and wall seconds, and the peak resident size in MB (1e6) of the JVM and of the largest
    other process."""

    jvm_seconds: float
    python_seconds: float
    wall_seconds: float
    jvm_mb: int
    python_mb: int

    @property
    def cpu_seconds(self) -> float:
        return self.jvm_seconds + self.python_seconds


class Processes:
    """This process and those below it, as they come and go.

    Spark's workers are forgotten when they end by the process that forked them (it ignores
    SIGCHLD): of each, what it had used when it was last looked at counts on.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], tuple[bool, float]] = {}

    def seconds(self) -> tuple[float, float]:
        """CPU seconds of JVMs, and of all else with those that ended and were waited for here."""
        for pid, stat in _below(os.getpid()).items():
            used = (int(stat[11]) + int(stat[12])) / _TICKS
            self._seen[pid, stat[_STARTED]] = _is_java(pid), used
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        jvm = sum(used for is_java, used in self._seen.values() if is_java)
        return jvm, own + sum(used for is_java, used in self._seen.values() if not is_java)

    def measured(self, action: Callable[[], object]) -> Used:
        """What `action` takes."""
        for pid in (os.getpid(), *_below(os.getpid())):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # peaks begin anew
        before, start = self.seconds(), time.monotonic()
        action()
        wall, after = time.monotonic() - start, self.seconds()
        peaks = {True: 0, False: _peak_mb(os.getpid())}
        for pid in _below(os.getpid()):
            is_java = _is_java(pid)
            peaks[is_java] = max(peaks[is_java], _peak_mb(pid))
        return Used(after[0] - before[0], after[1] - before[1], wall, peaks[True], peaks[False])


def _below(root: int) -> dict[int, list[str]]:
    """The processes below one, with their fields."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            stats[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
    found: dict[int, list[str]] = {}
    level = {root}
    while level:
        level = {pid for pid, stat in stats.items() if int(stat[_PARENT]) in level}
        found |= {pid: stats[pid] for pid in level}
    return found


def _is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def _peak_mb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 // 1_000_000
    return 0
