"""Settings of a server process: how often threads switch, how much freed memory is kept, and when
garbage is collected."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 0.001
"""Maximum time that an event loop waits for another thread to release the interpreter, in
seconds."""

KEPT_BYTES: Final = 256 << 20
"""Maximum freed memory at the end of the heap that the process keeps for later use, in bytes. By
default the C library returns all but a few MiB to the kernel, which must allocate new pages for the
next block from a tier. This took a third of the time of a cold read (`docs/benchmarks.md`)."""

MAPPED_BYTES: Final = 32 << 20
"""Size from which an allocation gets a memory mapping of its own, in bytes. The memory of such a
mapping is returned to the kernel when it is freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `mallopt`."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def tune_server_process() -> None:
    """Apply the settings of this module to the process. Environment variables for freed memory take
    precedence. No-op for C libraries without `mallopt`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if any(name in os.environ for name in _VARIABLES):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, MAPPED_BYTES)


def end_cycle_search_of_objects() -> None:
    """Collect garbage once, and exclude all objects in the process from later collections. Call
    this at the end of startup, because the loaded objects stay."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Disable garbage collection in the whole process during the block, for work that takes
    seconds, such as a start. Each collection would examine all new objects and find no garbage. If
    another thread has an overlapping block, collection may resume early."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
