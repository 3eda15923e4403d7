"""Durability of a put: its status and the future of its flush. All puts of a flush round share one
FlushFuture, so a put does not allocate its own."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Final

_CHECK_S: Final = 1.0
"""Interval at which a waiting thread checks the result without being woken, in seconds. Each waiter
wakes the next one, which fails if a waiter is interrupted."""
_log = logging.getLogger(__name__)


class PutMessageStatus(enum.Enum):
    """Put statuses of RocketMQ, in the same order. A put hook may return any of them. A store
    without replicas never returns the replica statuses."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    """Stored, but the flush failed or did not complete in time."""
    FLUSH_SLAVE_TIMEOUT = 2
    """Never returned, because this store has no replicas."""
    SLAVE_NOT_AVAILABLE = 3
    """Never returned. Java's store does not use this status either."""
    SERVICE_NOT_AVAILABLE = 4
    """The store does not run, is a slave, or currently forbids puts (RocketMQ's running flags)."""
    CREATE_MAPPED_FILE_FAILED = 5
    """No commit log file could be created or extended."""
    MESSAGE_ILLEGAL = 6
    """The message is permanently invalid: topic, queue id, body, record size or batch."""
    PROPERTIES_SIZE_EXCEEDED = 7
    """The properties have more than 32,767 bytes."""
    OS_PAGE_CACHE_BUSY = 8
    """Another put held the lock longer than `osPageCacheBusyTimeOutMills`."""
    UNKNOWN_ERROR = 9
    """Never returned. Unexpected errors are raised."""
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    """Never returned, because this store has no replicas."""
    PUT_TO_REMOTE_BROKER_FAIL = 11
    """Never returned. No put is sent to another broker."""
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    """Never returned, as in Java: the number of light queues has no limit."""
    WHEEL_TIMER_FLOW_CONTROL = 13
    """Returned only by a broker's put hook for timers, never by a store."""
    WHEEL_TIMER_MSG_ILLEGAL = 14
    """See WHEEL_TIMER_FLOW_CONTROL."""
    WHEEL_TIMER_NOT_ENABLE = 15
    """See WHEEL_TIMER_FLOW_CONTROL."""


class FlushFuture:
    """Result of a flush round: PUT_OK, or FLUSH_DISK_TIMEOUT if the messages did not reach the disk
    in time. Thread-safe. Await it or call `result`. Pass `status` to create a completed future."""

    __slots__ = ("_callbacks", "_gate", "_lock", "_status", "_waiters")

    def __init__(self, status: PutMessageStatus | None = None) -> None:
        self._status = status
        self._lock = threading.Lock()
        # Held until the round is complete. Waiters acquire it in turn and release it at once.
        self._gate = threading.Lock()
        self._callbacks: list[Callable[[FlushFuture], object]] = []
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[PutMessageStatus]]] = {}
        if status is None:
            self._gate.acquire()

    def done(self) -> bool:
        """Return whether the flush round is complete."""
        return self._status is not None

    def result(self, timeout_s: float | None = None) -> PutMessageStatus:
        """Wait for the result and return it. Raises TimeoutError after `timeout_s`, when the
        messages may or may not be on disk."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (status := self._status) is None:
            left_s = _CHECK_S if end_s is None else min(_CHECK_S, end_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(f"not known to be on disk after {timeout_s} s")
            if self._gate.acquire(timeout=left_s):
                self._gate.release()
        return status

    def add_done_callback(self, callback: Callable[[FlushFuture], object]) -> None:
        """Call `callback` with this future when the round completes, in the flush thread. If it is
        already complete, the callback runs immediately. Exceptions of the callback are logged."""
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
        """Complete the flush round and wake all waiters. Each event loop is called once, even if
        several of its tasks wait. Returns False if the round was already complete, and keeps the
        earlier result."""
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
        if not future.done():  # a cancelled task does not wait
            future.set_result(status)
