"""Reads of files from an event loop: what is at hand is read there, the rest in a thread.

At hand is what is in the page cache, of a file that is open (the page cache counts on Linux, where
a read can be told not to wait). All else may wait for the disk, so a read that needs more ends with
NotAtHand and is done again, from its beginning, in a thread: it must change nothing before it has
all that it reads.
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
    """A read needs what is not at hand."""


class _Thread(threading.local):
    takes_only_at_hand = False


_thread = _Thread()


def require_waiting() -> None:
    """Go on only where the caller may wait: raises NotAtHand within `read_at_hand`."""
    if _thread.takes_only_at_hand:
        raise NotAtHand


def pread_at_hand(fd: int, length: int, position: int) -> bytes:
    """Read as `os.pread` does. Raises NotAtHand within `read_at_hand` for what is not all in the
    page cache, OSError."""
    if not _thread.takes_only_at_hand or _NO_WAITING is None:
        return os.pread(fd, length, position)
    data = bytearray(length)
    try:
        count = os.preadv(fd, [data], position, _NO_WAITING)
    except BlockingIOError:
        raise NotAtHand from None
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # this filesystem cannot tell
            return os.pread(fd, length, position)
        raise
    if count < length:  # what follows may be on the disk, or behind the end
        raise NotAtHand
    return bytes(data)


async def read_at_hand(read: Callable[[], T], executor: Executor | None) -> T:
    """Call a read in this thread where all is at hand, else in `executor` (None: the loop's own).
    Raises what the read raises, Invalid when the executor is shut down."""
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
