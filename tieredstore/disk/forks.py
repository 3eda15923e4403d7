"""What a forked child must not share with its parent: descriptors that hold a lock, stores."""

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
    """Something that a forked child has a copy of, and must not use."""

    def leave_to_parent(self) -> None:
        """Give up, in the child, what the parent owns. Takes no lock, since the threads that have
        one may not be here, and does not fail."""


@contextmanager
def hold_forks() -> Iterator[None]:
    """Let no thread fork within the block: between opening a descriptor and `keep_private`."""
    with _guard:
        yield


def keep_private(fd: int) -> None:
    """Take a descriptor away from children that are forked from now on: for them it is one of the
    null device. `close_private` ends that."""
    with _guard:
        _private.add(fd)


def close_private(fd: int) -> None:
    """Close a descriptor that was kept private."""
    with _guard:
        _private.discard(fd)
        os.close(fd)


def tell_of_forks(owner: ForkAware) -> None:
    """Call `leave_to_parent` of an object, as long as it lives, in each child that is forked."""
    with _guard:
        _owners.add(owner)


def _release_in_child() -> None:
    global _guard  # noqa: PLW0603 - another thread's, which is not here
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
