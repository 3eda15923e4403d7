"""Memory limit of this process: its cgroup limit or the memory of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_FALLBACK_BYTES = 1 << 30


def usable_memory_bytes() -> int:
    """Return the smaller of the cgroup limit and the machine's memory (bytes)."""
    return min([_machine_bytes(), *_cgroup_limits_bytes()])


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return _FALLBACK_BYTES


def _cgroup_limits_bytes(files: tuple[Path, ...] = _CGROUP_LIMIT_FILES) -> list[int]:
    """Return the cgroup limits that are set. Without a limit, cgroup v2 reports `max`, and v1
    reports a huge number."""
    limits = []
    for file in files:
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():
            limits.append(int(text))
    return limits
