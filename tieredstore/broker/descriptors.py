"""Descriptors of the process: clients take some, and the store needs the others for its files."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

RESERVED: Final = 256
"""Descriptors that are left for files; of a low limit a quarter."""


def leaves_room(descriptor: int) -> bool:
    """Tell whether a client's new descriptor leaves enough of them for files. It is the lowest that
    was free: all below it are taken."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return True
    return descriptor < limit - min(RESERVED, limit // 4)


def raise_limit() -> None:
    """Let the process open as many files as it may at all, as Java does for its own: each client
    takes one, and the usual 1,024 are soon gone."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
