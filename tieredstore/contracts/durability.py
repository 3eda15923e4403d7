"""FlushFuture: when what was put is on disk. One object is shared by all puts of a flush round, so
that a put makes nothing to wait with."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import PutMessageStatus

_CHECK_S: Final = 1.0
"""A waiting thread looks again after this long, should another one have been interrupted while it
passed the wake-up on."""
_log = logging.getLogger(__name__)


class FlushFuture:
    """The outcome of one flush round: PUT_OK, or FLUSH_DISK_TIMEOUT when its messages were not
    brought to disk in time. Thread-safe; await it, or call `result`.

    status: the outcome of a round that is over already.
    """

    __slots__ = ("_callbacks", "_gate", "_lock", "_status", "_waiters")

    def __init__(self, status: PutMessageStatus | None = None) -> None:
        self._status = status
        self._lock = threading.Lock()
        # Held until the round is over; those who wait take it in turn and give it back at once.
        self._gate = threading.Lock()
        self._callbacks: list[Callable[[FlushFuture], object]] = []
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[PutMessageStatus]]] = {}
        if status is None:
            self._gate.acquire()

    def done(self) -> bool:
        """Tell whether the round is over."""
        return self._status is not None

    def result(self, timeout_s: float | None = None) -> PutMessageStatus:
        """Wait for the outcome and return it. Raises TimeoutError after `timeout_s`; that says
        nothing about the messages."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (status := self._status) is None:
            left_s = _CHECK_S if end_s is None else min(_CHECK_S, end_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(f"not known to be on disk after {timeout_s} s")
            if self._gate.acquire(timeout=left_s):
                self._gate.release()
        return status

    def add_done_callback(self, callback: Callable[[FlushFuture], object]) -> None:
        """Call `callback` with this object once the round is over, in the thread of the flush; at
        once when it is over already. What it raises is logged."""
        with self._lock:
            if self._status is None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def __await__(self) -> Generator[object, None, PutMessageStatus]:
        status = self._status
        if status is not None:
            return status
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._status is not None:
                return self._status
            waiter: asyncio.Future[PutMessageStatus] = loop.create_future()
            self._waiters.setdefault(loop, []).append(waiter)
        return (yield from waiter)

    def complete(self, status: PutMessageStatus) -> bool:
        """End the round: each event loop is called once, however many tasks of it wait. Returns
        False when it was over already, whose outcome stays."""
        with self._lock:
            if self._status is not None:
                return False
            self._status = status
            callbacks, self._callbacks = self._callbacks, []
            waiters, self._waiters = self._waiters, {}
        self._gate.release()
        for loop, futures in waiters.items():
            try:
                loop.call_soon_threadsafe(_wake_tasks, futures, status)
            except RuntimeError:  # the loop was closed, and its tasks with it
                _log.debug("a loop with %d waiting tasks is closed", len(futures))
        for callback in callbacks:
            self._call(callback)
        return True

    def _call(self, callback: Callable[[FlushFuture], object]) -> None:
        try:
            callback(self)
        except Exception:
            _log.exception("a callback of a flush failed")


def _wake_tasks(
    futures: Iterable[asyncio.Future[PutMessageStatus]], status: PutMessageStatus
) -> None:
    for future in futures:
        if not future.done():  # a task that was cancelled waits no more
            future.set_result(status)
