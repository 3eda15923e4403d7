"""Timeline: a clock of its own for reads that are driven one after the other, but were to happen
side by side."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tieredstore.contracts.segment import FileSegmentType
from tieredstore.tier.reading import SegmentRead, Steps, Wait

if TYPE_CHECKING:
    from tieredstore.contracts.request_model import Requests
    from tieredstore.jobs.advising.backend import Backend

T = TypeVar("T")
P = ParamSpec("P")


class Timeline(Executor):
    """The time of the read in hand, and a place for reads in the background.

    What is submitted is carried out at once, from the time of its submission on, and whoever
    submitted it goes on at that time; what it has read is there for others only when its time has
    come (`find_ready_ms`). Reads of one step that are submitted take the time of the longest.
    """

    def __init__(self, backend: Backend, begin_ms: float) -> None:
        self._backend = backend
        self._at_ms = begin_ms
        self._joined_ms = begin_ms  # the end of reads side by side
        self._ahead_depth = 0
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
        self._at_ms = self._joined_ms = begin_ms
        try:
            step = next(steps)
            while True:
                found = step.now() if isinstance(step, Wait) else self._read_together(step)
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
        return found

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Carry it out now, as if beside what goes on."""
        future: Future[T] = Future()
        begin_ms, joined_ms = self._at_ms, self._joined_ms
        is_step = getattr(fn, "__func__", None) is SegmentRead.read_blocking
        self._ahead_depth += not is_step
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        finally:
            self._ahead_depth -= not is_step
        end_ms, self._at_ms = self._at_ms, begin_ms
        self._joined_ms = max(joined_ms, end_ms) if is_step else joined_ms
        return future

    # What reads take

    def pass_read(
        self, owner: Any, file_type: FileSegmentType, messages: range, sizes: list[int]
    ) -> None:
        """Let the time of requests of these sizes pass."""
        if sizes:
            self.requests["GetObject", file_type.name] += len(sizes)
            self.read_bytes += sum(sizes)
            end_ms = self._at_ms + self._backend.time_ms(sizes)
            self._at_ms = max(end_ms, self._joined_ms)
        if self._ahead_depth and file_type is FileSegmentType.COMMIT_LOG:
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
