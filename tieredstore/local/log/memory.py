"""Pages of a mapping: loading, locking, read-ahead."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tieredstore.local.log.gathering import Run, Runs

POPULATE_WRITE: Final = 23
"""The constant MADV_POPULATE_WRITE of Linux 5.14, for which Python has no name yet."""
_MOST_PAGES: Final = 256
NEAR_BYTES: Final = 128 * mmap.PAGESIZE
_log = logging.getLogger(__name__)


@functools.cache
def _call(name: str) -> Callable[[int, int], int] | None:
    """Return the C library's `mlock` or `munlock`, or None."""
    try:
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.cache
def _find_madvise() -> Callable[[int, int, int], int] | None:
    function: Any = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.cache
def _find_mincore() -> Callable[[int, int, int], int] | None:
    """Return `mincore`, which reports resident pages. It never blocks, so it keeps the GIL."""
    if sys.platform != "linux":
        return None
    function: Any = getattr(ctypes.PyDLL(None), "mincore", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.cache
def _warn_once(reason: str) -> None:
    _log.warning("memory is not locked, so it may be swapped out: %s (said once)", reason)


def _apply(name: str, mapping: mmap.mmap) -> str | None:
    function = _call(name)
    if function is None:
        return f"the system has no {name}"
    first = ctypes.c_char.from_buffer(mapping)
    try:
        failed = function(ctypes.addressof(first), len(mapping))
    finally:
        del first
    return os.strerror(ctypes.get_errno()) if failed else None


def populate(mapping: mmap.mmap, start: int, end: int) -> None:
    """Load the pages of bytes [start, end) of a writable mapping, if the system supports it. Other
    threads run during the call (`mmap.madvise` keeps the GIL). `start`: position of a page's first
    byte."""
    madvise = _find_madvise()
    if madvise is not None:
        first = ctypes.c_char.from_buffer(mapping)  # so that it stays mapped
        madvise(ctypes.addressof(first) + start, end - start, POPULATE_WRITE)


class _Answer(threading.local):
    """Output array of `mincore`, one byte per page."""

    def __init__(self) -> None:
        self.pages = ctypes.create_string_buffer(_MOST_PAGES)
        self.address = ctypes.addressof(self.pages)


_answer = _Answer()


def find_address(view: memoryview) -> int:
    """Return the address of a writable mapping, which is valid as long as a view of the mapping
    exists."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def is_resident(address: int, start: int, end: int) -> bool:
    """Return whether all pages of the bytes [start, end) of the mapping at `address` are resident.
    Access to another page would wait for the disk and block all threads. Returns True if the system
    cannot tell."""
    mincore = _find_mincore()
    if mincore is None:
        return True
    position = start - start % mmap.PAGESIZE
    while position < end:
        size = min(end - position, _MOST_PAGES * mmap.PAGESIZE)
        count = -(-size // mmap.PAGESIZE)
        if mincore(address + position, size, _answer.address):
            return True
        if _answer.pages.raw[:count].count(1) != count:
            return False
        position += size
    return True


def join_near(runs: Runs) -> list[Run]:
    """Return the byte ranges whose pages to request from the system. Ranges with small gaps
    (NEAR_BYTES on average) become one range, because one larger request costs little more."""
    span_bytes = runs.end - runs.begin
    is_near = span_bytes <= runs.size_bytes + NEAR_BYTES or (
        span_bytes <= runs.size_bytes + NEAR_BYTES * (1 + np.count_nonzero(runs.breaks))
    )
    return [(runs.begin, runs.end)] if is_near else runs.list_spans()


def lock_memory(mapping: mmap.mmap) -> bool:
    """Lock the pages of a writable mapping in memory, and read them ahead. Returns whether they are
    locked. A refusal is harmless and logged once."""
    reason = _apply("mlock", mapping)
    if reason is not None:
        _warn_once(reason)
    if hasattr(mmap, "MADV_WILLNEED"):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_WILLNEED)
    return reason is None


def unlock_memory(mapping: mmap.mmap) -> None:
    """Unlock the pages of a mapping. Idempotent."""
    _apply("munlock", mapping)
