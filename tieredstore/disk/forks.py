"""Resources that a forked child must not share with its parent: stores and locked file
descriptors."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_guard = threading.RLock()
_private: set[int] = set()
_owners: weakref.WeakSet[ForkAware] = weakref.WeakSet()


class ForkAware(Protocol):
    """Object that must not be used in a forked child."""

    def leave_to_parent(self) -> None:
        """Abandon everything that the parent owns, in the child. Takes no lock, because the thread
        that holds it may not exist in the child. Raises no error."""


@contextmanager
def hold_forks() -> Iterator[None]:
    """Delay forks of this process until the end of the block. Open a descriptor and call
    `keep_private` in the same block."""
    with _guard:
        yield


def keep_private(fd: int) -> None:
    """Make a descriptor private: children forked from now on get the null device instead. Use
    `close_private` to close it."""
    with _guard:
        _private.add(fd)


def close_private(fd: int) -> None:
    """Close a private descriptor."""
    with _guard:
        _private.discard(fd)
        os.close(fd)


def expect_forks(owner: ForkAware) -> None:
    """Call `leave_to_parent` of an object in each forked child, as long as the object exists."""
    with _guard:
        _owners.add(owner)


def _release_in_child() -> None:
    global _guard  # # noqa: PLW0603 - another thread's, which is not here
    _guard = threading.RLock()
    if _private:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in _private:
            os.dup2(null, fd, inheritable=False)
        os.close(null)
        _private.clear()
    for owner in list(_owners):
        owner.leave_to_parent()
    _owners.clear()


def _hold() -> None:
    _guard.acquire()


def _go_on() -> None:
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_release_in_child)
