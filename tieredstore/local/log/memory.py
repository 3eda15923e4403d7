"""Memory that stays: pages of a mapping made, locked and read ahead."""

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
"""MADV_POPULATE_WRITE of Linux 5.14; Python has no name for it yet."""
_MOST_PAGES: Final = 256
NEAR_BYTES: Final = 128 * mmap.PAGESIZE
_log = logging.getLogger(__name__)


@functools.cache
def _call(name: str) -> Callable[[int, int], int] | None:
    """`mlock` or `munlock` of the C library; None where there is none."""
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
    """What tells which pages are in memory; it never waits, so it keeps the GIL."""
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
    """Call it for a mapping; returns why that failed."""
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
    """Make the pages of bytes [start, end) of a writable mapping, as far as the system can. Other
    threads go on meanwhile (`mmap.madvise` keeps the GIL). start: of a page."""
    madvise = _find_madvise()
    if madvise is not None:
        first = ctypes.c_char.from_buffer(mapping)  # so that it stays mapped
        madvise(ctypes.addressof(first) + start, end - start, POPULATE_WRITE)


class _Answer(threading.local):
    """What `mincore` writes for each page."""

    def __init__(self) -> None:
        self.pages = ctypes.create_string_buffer(_MOST_PAGES)
        self.address = ctypes.addressof(self.pages)


_answer = _Answer()


def find_address(view: memoryview) -> int:
    """Return where a writable mapping begins, for as long as somebody has a view of it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def is_resident(address: int, start: int, end: int) -> bool:
    """Tell whether all pages of bytes [start, end) of a mapping at an address are in memory: who
    touches another one waits for the disk, and all threads with it. True where the system cannot
    tell."""
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
    """Join runs, to ask for their pages: all as one where on average no more than
    NEAR_BYTES lie between them, for so many pages take about as long as another question. What else
    lies between them is not asked for: one of 100,000 queues has the whole log between its
    messages."""
    span_bytes = runs.end - runs.begin
    is_near = span_bytes <= runs.size_bytes + NEAR_BYTES or (
        span_bytes <= runs.size_bytes + NEAR_BYTES * (1 + np.count_nonzero(runs.breaks))
    )
    return [(runs.begin, runs.end)] if is_near else runs.list_spans()


def lock_memory(mapping: mmap.mmap) -> bool:
    """Keep the pages of a writable mapping in memory, and have them read ahead; returns whether the
    system does. A refusal is logged once and harms nothing."""
    reason = _apply("mlock", mapping)
    if reason is not None:
        _warn_once(reason)
    if hasattr(mmap, "MADV_WILLNEED"):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_WILLNEED)
    return reason is None


def unlock_memory(mapping: mmap.mmap) -> None:
    """Let the system swap the pages of a mapping again. Idempotent."""
    _apply("munlock", mapping)
