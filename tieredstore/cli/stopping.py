"""Ends a run in good order: SIGINT and SIGTERM set a signal, a second one ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import FrameType


class Stoppable(Protocol):
    """Asks a run to stop after what it has in hand."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@contextmanager
def stop_on_signals(stop: Stoppable) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after what is in hand; a second one at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.is_set():
            raise KeyboardInterrupt
        signal.signal(number, signal.default_int_handler)
        stop.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
