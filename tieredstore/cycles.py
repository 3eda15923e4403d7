"""Python's search for cycles, while very many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Search for no cycles meanwhile, in the whole process: each search would go through all that
    was made so far, and find that it stays. For work of seconds, as a start is. Within another one
    of another thread it may end with that."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
