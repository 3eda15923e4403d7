"""`ServiceThread`: a background loop, which all services use and which says how it is."""

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
    """How a background loop is."""

    STOPPED = "stopped"
    """Not started, or stopped."""
    STARTING = "starting"
    """On its way to its first round; nothing is known to be bad."""
    RUNNING = "running"
    """It lives, and its last round went well."""
    LATE = "late"
    """A round is overdue, or takes long without progress."""
    FAILED = "failed"
    """The last round failed; it is tried again."""
    DEAD = "dead"
    """The thread has ended, though nobody stopped it."""


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """How a background loop is now.

    failures: rounds in a row that failed; late_ms: how long a round is overdue, or has shown no
    progress; error: what ended the last round, or the thread. For people and gauges: it follows
    the wall clock, so nothing that must be safe may rest on it.
    """

    name: str
    state: ServiceState
    failures: int = 0
    late_ms: int = 0
    error: BaseException | None = None


@runtime_checkable
class MonitoredServices(Protocol):
    """Something with background loops."""

    def health(self) -> Sequence[ServiceHealth]:
        """Return how each of the loops is, in a fixed order."""


class WakeEvent(threading.Event):
    """An event that is set by one call into C.

    A signal handler that raises in the middle of `Event.set` leaves its lock taken for ever; here
    there is no middle, so whoever may be interrupted (a put in the main thread) can set it.
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
        """Block until it is set, at most for `timeout` seconds; return whether it is. One thread
        may wait."""
        try:
            self._tokens.get(timeout=timeout)
        except Empty:
            return False
        self._tokens.put(None)
        return True


_OWN_SIGNALS: Final = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
"""What a thread is sent for what it does itself."""


def _leave_signals_to_others() -> None:
    """Let no other signal interrupt this thread: before Python 3.13 a wait of `SimpleQueue` that is
    interrupted, and finds its time over, has no end any more."""
    if threading.current_thread() is threading.main_thread():
        return  # Python handles them there
    if hasattr(signal, "pthread_sigmask"):
        own = {getattr(signal, name, None) for name in _OWN_SIGNALS}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - own)


class ServiceThread:
    """Calls `work` at an interval, in a thread of its own.

    An error ends a round, never the thread. After failures the next round comes after twice the
    interval, four times, … up to `max_backoff_ms` (by default the interval: no longer than ever).

    interval_ms: between two rounds; a call: what it says when a wait begins; None: a round comes
    only when `wake` is called. retry_ms: in place of the interval after failures, where there is no
    interval. waits_first: whether the first round comes after an interval; first_delay_ms: after
    this time. duty: called, and nothing else, when it is woken before a failed round is due again;
    by default a wake begins that round.
    on_error: told of each TieredStoreError in place of the log. late_after_ms: see `health`.
    wake_event: what `wake` sets, where others set it too.
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
        """Whether it was started and not stopped."""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called: a long round asks, and ends early."""
        return self._stopping

    def start(self) -> None:
        """Begin. Does nothing when it runs."""
        if self._thread is not None:
            return
        self._stopping = False
        self._failures, self._error = 0, None
        self._due_ms = None
        self._wake.clear()
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round now, or right after the one under way."""
        self._wake.set()

    def stop(self, timeout_ms: int | None = None) -> None:
        """End after the round under way, without another one; wait for that, at most for
        `timeout_ms`. Idempotent."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(None if timeout_ms is None else timeout_ms / 1000)

    def report_progress(self) -> None:
        """Report that a long round has just done a part of its work, so that it is not late."""
        self._due_ms = self._clock.now_ms()

    def health(self) -> ServiceHealth:
        """Return how the loop is. LATE: for `late_after_ms` after it was due no round has begun, or
        the one that began has neither ended nor reported progress. A clock that was set back or
        forth makes it wrong until the next round."""
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
        """Run rounds in the thread, until `stop`."""
        _leave_signals_to_others()
        try:
            if self._waits_first:
                first_ms = self._first_delay_ms
                self._wait(self._interval_ms if first_ms is None else first_ms)
            retry_ms: int | None = None
            while not self._stopping:
                now_ms = self._due_ms = self._clock.now_ms()
                # A clock that was set back makes no wait longer.
                early_ms = 0 if retry_ms is None else retry_ms - now_ms
                is_early = self._duty is not None and 0 < early_ms <= self._max_backoff_ms
                if self._run_round(is_early) and not is_early:
                    retry_ms = None
                    delay_ms = self._interval_ms
                elif (first_retry_ms := self._retry_ms) is None:
                    delay_ms = None
                else:
                    delay_ms = min(
                        first_retry_ms << min(self._failures, _MAX_DOUBLINGS),
                        self._max_backoff_ms,
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
        """Whether the round went well."""
        try:
            if is_early and self._duty is not None:
                self._duty()
            else:
                self._work()
                self._failures, self._error = 0, None
        except Exception as error:
            self._failures += 1
            self._error = error
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
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
