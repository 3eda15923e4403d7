"""Clean stop of a run. SIGINT, SIGTERM and SIGHUP request a stop. A second SIGINT or SIGTERM
interrupts the run, which then waits only for its current requests. A third signal ends the
process."""

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
    """Object that can be asked to stop after its current work."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@contextmanager
def stop_on_signals(stop: Stoppable, received: list[int] | None = None) -> Iterator[None]:
    """Set `stop` on SIGINT, SIGTERM or SIGHUP. A second signal raises KeyboardInterrupt. Closing
    resources may then take long if a backend does not respond, so a third signal ends the process
    immediately. The run can be resumed as after a crash.

    A second SIGHUP has no effect, because a closed terminal sends two. Under `nohup`, SIGHUP is
    ignored. `received`: list to which the signal numbers are appended."""

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
    """Redirect the standard streams of a closed terminal to the null device. Writing to them would
    raise an error that ends the run."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            if is_device and not os.isatty(descriptor):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor)
                os.close(null)
