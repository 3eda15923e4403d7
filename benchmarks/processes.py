"""CPU and memory of this process and its descendants, such as a JVM and its Python workers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _STARTED = 1, 19
"""Fields of /proc/PID/stat after the name: the parent, and the start time of the process (process
numbers are reused)."""


@dataclass(frozen=True, slots=True)
class Used:
    """CPU and wall clock seconds, and peak resident sizes of the JVM and of the largest other
    process, MB (1e6)."""

    jvm_seconds: float
    python_seconds: float
    wall_seconds: float
    jvm_mb: int
    python_mb: int

    @property
    def cpu_seconds(self) -> float:
        return self.jvm_seconds + self.python_seconds


class Processes:
    """This process and its changing descendants.

    A worker that has ended counts with its last observed usage, because the process that forks
    Spark's workers ignores SIGCHLD.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], tuple[bool, float]] = {}

    def seconds(self) -> tuple[float, float]:
        """Return the CPU seconds of JVMs, and of all other processes, including child processes
        that have ended."""
        for pid, stat in _below(os.getpid()).items():
            used = (int(stat[11]) + int(stat[12])) / _TICKS
            self._seen[pid, stat[_STARTED]] = _is_java(pid), used
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        jvm = sum(used for is_java, used in self._seen.values() if is_java)
        return jvm, own + sum(used for is_java, used in self._seen.values() if not is_java)

    def measured(self, action: Callable[[], object]) -> Used:
        """Run `action` and return its usage."""
        for pid in (os.getpid(), *_below(os.getpid())):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # Reset the peaks.
        before, start = self.seconds(), time.monotonic()
        action()
        wall, after = time.monotonic() - start, self.seconds()
        peaks = {True: 0, False: _peak_mb(os.getpid())}
        for pid in _below(os.getpid()):
            is_java = _is_java(pid)
            peaks[is_java] = max(peaks[is_java], _peak_mb(pid))
        return Used(after[0] - before[0], after[1] - before[1], wall, peaks[True], peaks[False])


def _below(root: int) -> dict[int, list[str]]:
    """Return the descendants of a process, and their fields of /proc/PID/stat."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended.
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
