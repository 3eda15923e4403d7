"""Signals that ask a running job to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stopped(Exception):
    """The run ended between two tasks because it was asked to stop. Its journal is kept."""


class StopSignal:
    """Signal that asks a run to stop after the current batches. Safe to set from a signal
    handler."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._actions: list[Callable[[], None]] = []

    def set(self) -> None:
        self.event.set()
        for action in list(self._actions):
            action()

    def is_set(self) -> bool:
        return self.event.is_set()

    def on_set(self, action: Callable[[], None]) -> None:
        """Call `action` when the signal is set, or immediately if it is already set."""
        self._actions.append(action)
        if self.event.is_set():
            action()
