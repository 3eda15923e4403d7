"""Settings of a process that serves: how threads take turns, and what becomes of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.001
"""How long an event loop may wait for another thread to give the interpreter up."""

KEPT_BYTES: Final = 256 << 20
"""Freed memory at the end of the heap that stays with the process. The C library gives it back from
some MiB on, and the kernel makes new pages for the next block that is read from a tier: a third of
the time of a cold read (`docs/benchmarks.md`)."""

MAPPED_BYTES: Final = 32 << 20
"""Requests of as much are mapped by themselves, and unmapped when they are freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `mallopt`."""
_SAID_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def tune_server_process() -> None:
    """Make these settings for this process. Environment variables that say what becomes of freed
    memory have the last word; C libraries without `mallopt` are left alone."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if any(name in os.environ for name in _SAID_BY):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, MAPPED_BYTES)
