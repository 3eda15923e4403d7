"""Reads of files from an event loop.

Bytes of an open file that are in the page cache ("at hand") are read in the loop's thread, other
bytes in a worker thread. Only Linux has reads that never wait for the disk. A read that would have
to wait raises NotAtHand, and the whole read function is called again in a worker thread. So the
function must not change anything before it has all its bytes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from tieredstore.errors import Invalid

T = TypeVar("T")
_NO_WAITING: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class NotAtHand(Exception):
    """Raised by a read whose bytes are not at hand."""


class _Thread(threading.local):
    takes_only_at_hand = False


_thread = _Thread()


def require_waiting() -> None:
    """Raise NotAtHand if this thread is in `read_at_hand` and must not wait. Call this before an
    operation that may wait."""
    if _thread.takes_only_at_hand:
        raise NotAtHand


def pread_at_hand(fd: int, length: int, position: int) -> bytes:
    """Read bytes of a file like `os.pread`. Inside `read_at_hand`, raises NotAtHand unless all
    bytes are in the page cache. Raises OSError."""
    if not _thread.takes_only_at_hand or _NO_WAITING is None:
        return os.pread(fd, length, position)
    data = bytearray(length)
    try:
        count = os.preadv(fd, [data], position, _NO_WAITING)
    except BlockingIOError:
        raise NotAtHand from None
    except OSError as error:
        # The file system does not support the flag.
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return os.pread(fd, length, position)
        raise
    if count < length:  # the rest may be on the disk, or beyond the end
        raise NotAtHand
    return bytes(data)


async def read_at_hand(read: Callable[[], T], executor: Executor | None) -> T:
    """Call `read` in this thread, and again in `executor` if it raises NotAtHand (None: the loop's
    default executor). Raises the errors of `read`, and Invalid if the executor is shut down."""
    _thread.takes_only_at_hand = True
    try:
        return read()
    except NotAtHand:
        pass
    finally:
        _thread.takes_only_at_hand = False
    try:
        reading = asyncio.get_running_loop().run_in_executor(executor, read)
    except RuntimeError as error:
        raise Invalid("a read came when its store was closed") from error
    return await reading
