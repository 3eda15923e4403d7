"""Timeline: a clock of its own for reads that are driven one after the other, but were to happen
side by side."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tieredstore.contracts.segment import FileSegmentType
from tieredstore.tier.fetch.flights import Flight
from tieredstore.tier.reading import SegmentRead, Steps, Wait

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import Requests
    from tieredstore.jobs.advising.reads.backend import Backend

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class _Task:
    run: Callable[[], None]


def _carry_out(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


class Timeline(Executor):
    """The time of the read in hand, and a place for reads in the background.

    What is submitted in the background is carried out when the backend's first answer to it is due,
    before anything that happens later (`run_until`). What it has read is there when the rest of its
    bytes has come (`find_ready_ms`). Reads of one step that are submitted are carried out at once,
    and take the time of the longest.
    """

    def __init__(self, backend: Backend, begin_ms: float, operation: str = "GetObject") -> None:
        """operation: what a read of the backend is called."""
        self._operation = operation
        backend.begin()
        self._backend = backend
        self._at_ms = begin_ms
        self._joined_ms = begin_ms  # the end of reads side by side
        self._is_background = False
        self._pending: list[tuple[float, int, _Task]] = []
        self._numbers = count()
        self._ready: dict[object, list[tuple[range, float]]] = {}
        self.requests: Requests = Counter()
        self.read_bytes = 0

    # The clock of what is driven

    def now_ms(self) -> int:
        return int(self._at_ms)

    def monotonic_ms(self) -> int:
        return int(self._at_ms)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self._at_ms += timeout_ms
        return event.is_set()

    # Driving

    def drive(self, steps: Steps[T], begin_ms: float) -> tuple[T, float]:
        """Drive the steps of a read from a time on; returns what it gave, and when."""
        self.run_until(begin_ms)
        self._at_ms = self._joined_ms = begin_ms
        try:
            step = next(steps)
            while True:
                found = self._wait(step) if isinstance(step, Wait) else self._read_together(step)
                step = steps.send(found)
        except StopIteration as stop:
            result: T = stop.value
            return result, self._at_ms
        finally:
            steps.close()

    def _read_together(self, step: list[SegmentRead]) -> list[memoryview]:
        begin_ms = end_ms = self._at_ms
        found = []
        for read in step:
            self._at_ms = begin_ms
            found.append(read.read_blocking())
            end_ms = max(end_ms, self._at_ms)
        self._at_ms = end_ms
        self.run_until(end_ms)
        return found

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Take a read of a step, or what is to be done in the background."""
        future: Future[T] = Future()
        task = _Task(lambda: _carry_out(future, lambda: fn(*args, **kwargs)))
        if getattr(fn, "__func__", None) is SegmentRead.read_blocking:
            begin_ms = self._at_ms
            task.run()
            end_ms, self._at_ms = self._at_ms, begin_ms
            self._joined_ms = max(self._joined_ms, end_ms)
        else:
            due_ms = self._at_ms + self._backend.draw_ms()
            heapq.heappush(self._pending, (due_ms, next(self._numbers), task))
        return future

    def run_until(self, time_ms: float) -> None:
        """Carry out what is due by then in the background."""
        while self._pending and self._pending[0][0] <= time_ms:
            self._run_next()

    def _run_next(self) -> float:
        """Carry out the next thing in the background; returns when it was due."""
        due_ms, _, task = heapq.heappop(self._pending)
        before = self._at_ms, self._joined_ms, self._is_background
        self._at_ms = self._joined_ms = due_ms
        self._is_background = True
        try:
            task.run()
        finally:
            self._at_ms, self._joined_ms, self._is_background = before
        return due_ms

    def _wait(self, step: Wait[Any]) -> Any:
        flight = getattr(step.now, "__self__", None)
        while isinstance(flight, Flight) and not flight.has_landed and self._pending:
            self._at_ms = max(self._at_ms, self._run_next())
        return step.now()

    # What reads take

    def pass_read(
        self, owner: Any, file_type: FileSegmentType, messages: range, sizes: list[int]
    ) -> None:
        """Let the time of requests of these sizes pass."""
        if sizes:
            self.requests[self._operation, file_type.name] += len(sizes)
            self.read_bytes += sum(sizes)
            # In the background the first answer was waited for before.
            end_ms = self._backend.end_ms(sizes, self._at_ms, is_answered=self._is_background)
            self._at_ms = max(end_ms, self._joined_ms)
        if self._is_background and file_type is FileSegmentType.COMMIT_LOG:
            self._ready.setdefault(owner, []).append((messages, self._at_ms))

    def find_ready_ms(self, owner: Any, messages: range, now_ms: float) -> float:
        """Return when what was read ahead of these messages is there, `now_ms` at least; what is
        there by now is forgotten."""
        ahead = [item for item in self._ready.get(owner, ()) if item[1] > now_ms]
        if not ahead:
            self._ready.pop(owner, None)
            return now_ms
        self._ready[owner] = ahead
        return max(
            (
                ready_ms
                for found, ready_ms in ahead
                if found.start < messages.stop and messages.start < found.stop
            ),
            default=now_ms,
        )
