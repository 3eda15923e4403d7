"""Mapped files whose faults are reported instead of killing the process. Only for 64-bit Linux.

If a mapped file is truncated, or the disk cannot read or write a page, an access to the mapping
raises SIGBUS, which usually kills the process. For guarded mappings, the signal handler calls
`on_fault` and replaces the missing pages with zeros, from the accessed page to the end of the
mapping. The access then continues. Bytes that were read are invalid and bytes that were written are
lost, so the caller must check for a fault afterwards.

The handler is Python code that runs in the thread of the access. This is safe because the signal
only interrupts a copy between buffers, never the interpreter itself or an allocation. Faults
elsewhere kill the process as usual.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np

_IS_SUPPORTED: Final = (
    sys.platform == "linux"
    and sys.implementation.name == "cpython"
    and platform.machine() in ("x86_64", "aarch64")
)
_SA_SIGINFO: Final = 4
_SA_NODEFER: Final = 0x4000_0000
_FAULT_ADDRESS: Final = 16
"""Position (bytes) of `si_addr`, the address of the fault, in the C type `siginfo_t`."""
_MAP_PRIVATE_ANONYMOUS_FIXED: Final = 0x02 | 0x20 | 0x10
_MAP_NORESERVE: Final = 0x4000
_READ_WRITE: Final = 3


class _SignalAction(ctypes.Structure):
    """`struct sigaction` of the C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_Range = tuple[int, int, Callable[[], object]]
_ranges: dict[int, _Range] = {}
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a forked child has no other thread that could release it
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def _load_library() -> object:
    # PyDLL keeps the interpreter's lock, so that the handler returns as early as possible.
    library = ctypes.PyDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    library.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return library


_library: Any = _load_library() if _IS_SUPPORTED else None


def _handle_fault(number: int, info: int, context: int) -> None:  # noqa: ARG001
    address = ctypes.c_size_t.from_address(info + _FAULT_ADDRESS).value
    for begin, end, on_fault in tuple(_ranges.values()):
        if begin <= address < end:
            page = address - address % mmap.PAGESIZE
            flags = _MAP_PRIVATE_ANONYMOUS_FIXED | _MAP_NORESERVE
            if _library.mmap(page, end - page, _READ_WRITE, flags, -1, 0) == page:
                on_fault()
                return
    # Not ours, or no memory: the access is repeated and ends the process as usual.
    _library.sigaction(signal.SIGBUS, ctypes.byref(_SignalAction()), None)


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_handler = _Handler(_handle_fault)
_action = _SignalAction(
    ctypes.cast(_handler, ctypes.c_void_p).value, flags=_SA_SIGINFO | _SA_NODEFER
)


def _address(mapping: mmap.mmap) -> int:
    # numpy also accepts read-only mappings.
    return int(np.frombuffer(mapping, np.uint8).__array_interface__["data"][0])


def guard(mapping: mmap.mmap, on_fault: Callable[[], object]) -> bool:
    """Report faults of a mapping to `on_fault` as long as the mapping exists. Returns whether the
    system supports this. `on_fault` runs in the middle of a copy, so it may set flags but must not
    take a lock. It must not hold a reference to the mapping."""
    if _library is None:
        return False
    begin = _address(mapping)
    with _lock:
        # Set each time, because other code may have replaced the handler.
        if _library.sigaction(signal.SIGBUS, ctypes.byref(_action), None):
            return False
        _ranges[begin] = (begin, begin + len(mapping), on_fault)
    weakref.finalize(mapping, _forget, begin, on_fault).atexit = False
    return True


def _forget(begin: int, on_fault: Callable[[], object]) -> None:
    found = _ranges.get(begin)
    if found is not None and found[2] is on_fault:
        del _ranges[begin]
