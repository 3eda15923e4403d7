"""Memory limit of this process: the limit of its control group, or the memory of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_FALLBACK_BYTES = 1 << 30


def usable_memory_bytes() -> int:
    """Return the smaller of the control group's limit and the machine's memory, bytes."""
    return min([_machine_bytes(), *_cgroup_limits_bytes()])


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return _FALLBACK_BYTES


def _cgroup_limits_bytes(files: tuple[Path, ...] = _CGROUP_LIMIT_FILES) -> list[int]:
    """Return the limits of the control group. Without a limit, version 2 of control groups has
    `max`, and version 1 has a huge number."""
    limits = []
    for file in files:
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():
            limits.append(int(text))
    return limits
