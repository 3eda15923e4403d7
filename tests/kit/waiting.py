"""Waits for what another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_S = 60.0


def wait_for(is_done: Callable[[], bool]) -> None:
    """Return once it is done; fail when it does not come."""
    deadline = time.monotonic() + LONGEST_S
    while not is_done():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)
