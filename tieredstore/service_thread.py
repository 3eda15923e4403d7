"""`ServiceThread`: the background loop of every service, with a health report."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Protocol, runtime_checkable

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import TieredStoreError

LATE_AFTER_MS: Final = 60_000
_MAX_DOUBLINGS: Final = 16
_log = logging.getLogger(__name__)


class ServiceState(Enum):
    """State of a background loop."""

    STOPPED = "stopped"
    """Not started, or stopped."""
    STARTING = "starting"
    """The first call of the loop's work has not ended, and no fault is known."""
    RUNNING = "running"
    """The loop runs, and its last round succeeded."""
    LATE = "late"
    """A round is overdue, or makes no progress."""
    FAILED = "failed"
    """The last round failed. It will be retried."""
    DEAD = "dead"
    """The thread ended without a stop."""


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """Health of a background loop. It depends on the wall clock, so use it only for messages and
    gauges.

    `failures`: consecutive failed rounds.
    `late_ms`: time for which a round has been overdue or made no progress.
    `error`: error of the last round or of the thread.
    """

    name: str
    state: ServiceState
    failures: int = 0
    late_ms: int = 0
    error: BaseException | None = None


@runtime_checkable
class MonitoredServices(Protocol):
    """Object with background loops."""

    def health(self) -> Sequence[ServiceHealth]:
        """Return the health of each loop, in a fixed order."""


class WakeEvent(threading.Event):
    """Event that is set by a single call into C, which no signal handler can interrupt.

    If a signal handler raises in the middle of `Event.set`, the lock of the event is never
    released. Code that a signal may interrupt, such as a put in the main thread, can set this event
    safely.
    """

    set: Callable[[], None]

    def __init__(self) -> None:
        super().__init__()
        self._tokens: SimpleQueue[None] = SimpleQueue()  # set while one is in it
        self.set = partial(self._tokens.put, None)

    def is_set(self) -> bool:
        return not self._tokens.empty()

    def clear(self) -> None:
        while self.is_set():
            self._tokens.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the event is set, for at most `timeout` seconds. Returns whether it is set.
        Only one thread may wait."""
        try:
            self._tokens.get(timeout=timeout)
        except Empty:
            return False
        self._tokens.put(None)
        return True


_OWN_SIGNALS: Final = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""Signals caused by a fault of the thread itself."""


def _leave_signals_to_others() -> None:
    """Block all signals in this thread except `_OWN_SIGNALS`. Before Python 3.13, `SimpleQueue.get`
    may never return after a signal."""
    if threading.current_thread() is threading.main_thread():
        return  # Python handles them there
    if hasattr(signal, "pthread_sigmask"):
        own = {getattr(signal, name, None) for name in _OWN_SIGNALS}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - own)


class ServiceThread:
    """Thread that calls `work` at an interval.

    An error ends a round, never the thread. After failures, the interval doubles for each failure,
    up to `max_backoff_ms` (default: the interval, which means no backoff).

    `interval_ms`: time between two rounds, or a function that returns it. If it is None, only
    `wake` begins a round. `retry_ms`: interval after failures, for a loop without an interval.
    `waits_first`: whether the first round comes after an interval instead of immediately.
    `first_delay_ms`: time before the first round. `duty`: called instead of a round if the loop is
    woken before a failed round is due for its retry. By default, the round is retried. `on_error`:
    called with each TieredStoreError, which is then not logged. `late_after_ms`: see `health`.
    `wake_event`: the event that `wake` sets, if other code sets it too.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        interval_ms: int | Callable[[], int] | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        retry_ms: int | None = None,
        max_backoff_ms: int = 0,
        waits_first: bool = False,
        first_delay_ms: int | None = None,
        duty: Callable[[], object] | None = None,
        on_error: Callable[[TieredStoreError], None] | None = None,
        late_after_ms: int = LATE_AFTER_MS,
        wake_event: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._interval = interval_ms
        self._clock = clock
        self._retry = retry_ms
        self._longest_backoff_ms = max_backoff_ms
        self._first_delay_ms = first_delay_ms
        self._waits_first = waits_first or first_delay_ms is not None
        self._duty = duty
        self._on_error = on_error
        self._late_after_ms = late_after_ms
        self._wake = wake_event if wake_event is not None else WakeEvent()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._error: BaseException | None = None
        self._due_ms: int | None = None

    @property
    def _interval_ms(self) -> int | None:
        return self._interval() if callable(self._interval) else self._interval

    @property
    def _retry_ms(self) -> int | None:
        return self._retry if self._interval is None else self._interval_ms

    @property
    def _max_backoff_ms(self) -> int:
        return max(self._longest_backoff_ms, self._retry_ms or 0)

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and not stopped."""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called. A long round checks this and ends early."""
        return self._stopping

    def start(self) -> None:
        """Start the thread. No-op if it is running."""
        if self._thread is not None:
            return
        self._stopping = False
        self._failures, self._error = 0, None
        self._due_ms = None
        self._wake.clear()
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round now, or right after the current one."""
        self._wake.set()

    def stop(self, timeout_ms: int | None = None) -> None:
        """Stop after the current round, and wait at most `timeout_ms` for the thread (None: no
        limit). Idempotent."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(None if timeout_ms is None else timeout_ms / 1000)

    def report_progress(self) -> None:
        """Report progress of a long round, so that the health does not become LATE."""
        self._due_ms = self._clock.now_ms()

    def health(self) -> ServiceHealth:
        """Return the health of the loop. It is LATE if a round is overdue by `late_after_ms`, or
        made no progress for that time. After a step of the wall clock, the health is wrong until
        the next round."""
        thread, due_ms = self._thread, self._due_ms
        late_ms = 0 if due_ms is None else max(self._clock.now_ms() - due_ms, 0)
        if thread is None:
            return ServiceHealth(self.name, ServiceState.STOPPED, self._failures, 0, self._error)
        if not thread.is_alive():
            state = ServiceState.DEAD
        elif self._failures:
            state = ServiceState.FAILED
        elif late_ms > self._late_after_ms:
            state = ServiceState.LATE
        else:
            state = ServiceState.RUNNING
        return ServiceHealth(self.name, state, self._failures, late_ms, self._error)

    def run(self) -> None:
        """Run rounds in the thread until `stop`."""
        _leave_signals_to_others()
        try:
            if self._waits_first:
                first_ms = self._first_delay_ms
                self._wait(self._interval_ms if first_ms is None else first_ms)
            retry_ms: int | None = None
            while not self._stopping:
                now_ms = self._due_ms = self._clock.now_ms()
                # A clock that is set back must not extend a wait.
                early_ms = 0 if retry_ms is None else retry_ms - now_ms
                is_early = self._duty is not None and 0 < early_ms <= self._max_backoff_ms
                if self._run_round(is_early) and not is_early:
                    retry_ms = None
                    delay_ms = self._interval_ms
                elif (first_retry_ms := self._retry_ms) is None:
                    delay_ms = None
                else:
                    delay_ms = min(
                        first_retry_ms << min(self._failures, _MAX_DOUBLINGS), self._max_backoff_ms
                    )
                    if is_early and retry_ms is not None:  # woken: the round is due when it was
                        delay_ms = max(min(delay_ms, retry_ms - self._clock.now_ms()), 0)
                    else:
                        retry_ms = self._clock.now_ms() + delay_ms
                if not self._stopping:
                    self._wait(delay_ms)
        except BaseException as error:
            self._error = error
            _log.critical("%s: the thread ends: %r", self.name, error)
            raise

    def _run_round(self, is_early: bool) -> bool:
        try:
            if is_early and self._duty is not None:
                self._duty()
            else:
                self._work()
                self._failures, self._error = 0, None
        except Exception as error:
            self._failures += 1
            self._error = error
            self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        try:
            if not isinstance(error, TieredStoreError):
                _log.error("%s: a round failed", self.name, exc_info=error)
            elif self._on_error is not None:
                self._on_error(error)
            else:
                _log.error("%s: %s", self.name, error)
        except Exception:
            _log.exception("%s: telling of an error failed", self.name)

    def _wait(self, delay_ms: int | None) -> None:
        if delay_ms is None:
            self._due_ms = None
            self._wake.wait()
        else:
            self._due_ms = self._clock.now_ms() + delay_ms
            if not self._clock.wait(self._wake, delay_ms):
                return
        if not self._stopping:
            self._wake.clear()
