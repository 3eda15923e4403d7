"""Signals that arrive at a chosen instruction, like a Ctrl-C."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNAL = signal.SIGUSR2


class Interrupt(BaseException):
    """Raised by the signal handler in place of KeyboardInterrupt."""


@contextmanager
def raising_signal(number: int = SIGNAL) -> Iterator[None]:
    """Make a signal raise Interrupt within the block."""

    def raise_interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(number, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def call_interrupted(call: Callable[[], object], step: int) -> bool:
    """Call a function and send a signal before its `step`-th instruction (from 1), including those
    of callees. Return whether the function has that many instructions. Use it within
    `raising_signal`. The interpreter handles the signal only at its usual points: after a call, at
    the beginning of a function, and before a jump back."""
    seen = 0
    # A garbage collection would run finalizers, and the interpreter ignores their errors.
    gc.disable()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == step:
                sys.settrace(None)
                # In C, from an instruction that handles no signal: it stays pending until the
                # traced code continues.
                [_] = map(_thread.interrupt_main, (SIGNAL,))
        return trace

    try:
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)
    except Interrupt:
        pass
    finally:
        gc.enable()
    return seen >= step


def run_elsewhere(call: Callable[[], object], timeout_s: float = 20) -> None:
    """Call a function in another thread, and fail the test if it hangs because this thread still
    holds a lock. Raises the errors of the call."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    assert found, "a lock stayed taken"
    if found[0] is not None:
        raise found[0]
