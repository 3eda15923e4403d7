"""Ends a run in good order: SIGINT and SIGTERM ask it to stop; a second one interrupts it, and
waits only for what is under way; a third one ends the process."""

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
def stop_on_signals(stop: Stoppable, received: list[int] | None = None) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop`. A second one raises KeyboardInterrupt, after which a run
    still closes what it opened: a backend that does not answer makes that long, so a third one is
    the system's own, which a run survives like any other crash. received: gets their numbers."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if received is not None:
            received.append(number)
        if stop.is_set():
            for each in before:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
