"""Ends a run in good order: SIGINT, SIGTERM and SIGHUP ask it to stop; a second SIGINT or SIGTERM
interrupts it, and waits only for what is under way; a third one ends the process."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import FrameType


class Stoppable(Protocol):
    """Asks a run to stop after what it has in hand."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@contextmanager
def stop_on_signals(stop: Stoppable, received: list[int] | None = None) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP set `stop`. A second one raises KeyboardInterrupt, after which
    a run still closes what it opened: a backend that does not answer makes that long, so a third
    one is the system's own, which a run survives like any other crash. But SIGHUP only asks: when a
    terminal is closed it comes twice, from the shell and at the shell's end. It stays ignored under
    `nohup`. received: gets their numbers."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if received is not None:
            received.append(number)
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        if not stop.is_set():
            stop.set()
        elif number != signal.SIGHUP:
            for each in before:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_closed_terminal() -> None:
    """Point standard streams elsewhere that are a terminal which was closed: what a run still says
    would be an error that ends it."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            if is_device and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor)
                os.close(null)
