"""Records the files that a thread opens, using Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_watched: dict[int, list[tuple[str, str]]] = {}
_IMPORTS = ("importlib", "zipimport", "linecache")


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watched:
        return
    found = _watched.get(threading.get_ident())
    if found is None:
        return
    frames: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename})")
        frame = frame.f_back
    if not any(name in one for one in frames for name in _IMPORTS):
        found.append((str(arguments[0]), " < ".join(frames[:16])))


@contextmanager
def watch_opens(thread: int) -> Iterator[list[tuple[str, str]]]:
    """Record the files that a thread opens within the block, each as a path with its callers.
    Imports are left out. `thread` is a result of `threading.get_ident`."""
    if not _watched:
        sys.addaudithook(_note)  # An audit hook cannot be removed. Without a watch it does nothing.
    found = _watched[thread] = []
    try:
        yield found
    finally:
        del _watched[thread]
