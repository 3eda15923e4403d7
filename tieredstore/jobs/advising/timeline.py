"""Simulated clock. Reads run one after the other, but their times are computed as if they were
concurrent."""

from __future__ import annotations

import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import count
from statistics import NormalDist
from typing import Final, ParamSpec, TypeVar

from tieredstore.contracts.request_model import Requests
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.tier.fetch.in_flight import Flight
from tieredstore.tier.reading import SegmentRead, Steps, Wait

T = TypeVar("T")
P = ParamSpec("P")
_GOLDEN: Final = 0.6180339887498949
_P99: Final = NormalDist().inv_cdf(0.99)


@dataclass(slots=True)
class Backend:
    """Response times of a modelled backend. `p50_ms`, `p99_ms`: median and 99th percentile of the
    time to the first byte. `bytes_per_s`: total bandwidth. `concurrent`: maximum number of
    concurrent requests. The times to the first byte are log-normal, and each simulation uses the
    same sequence."""

    p50_ms: float = 30.0
    p99_ms: float = 30.0
    bytes_per_s: float = 200e6
    concurrent: int = 16
    _drawn: int = field(default=0, repr=False)
    _free_ms: float = field(default=0.0, repr=False)

    def end_ms(self, sizes: list[int], begin_ms: float, *, is_answered: bool = False) -> float:
        """Return the end (ms) of concurrent requests that are sent at `begin_ms`. All reads share
        the bandwidth. `is_answered`: the first bytes have already arrived at `begin_ms`."""
        if not sizes:
            return begin_ms
        rounds = -(-len(sizes) // max(self.concurrent, 1))
        first_ms = sum(
            max(self.draw_ms() for _ in sizes[turn * self.concurrent :][: self.concurrent])
            for turn in range(is_answered, rounds)
        )
        self._free_ms = (
            max(begin_ms + first_ms, self._free_ms) + sum(sizes) * 1000 / self.bytes_per_s
        )
        return self._free_ms

    def begin(self) -> None:
        """Restart the sequence of response times, and free the bandwidth."""
        self._free_ms = 0.0
        self._drawn = 0

    def draw_ms(self) -> float:
        """Return the time to the first byte of the next request, ms."""
        if self.p99_ms <= self.p50_ms:
            return self.p50_ms
        self._drawn += 1
        share = min(max(self._drawn * _GOLDEN % 1.0, 1e-4), 1 - 1e-4)
        spread = math.log(self.p99_ms / self.p50_ms) / _P99
        return self.p50_ms * math.exp(spread * NormalDist().inv_cdf(share))


class Timeline(Executor):
    """Clock of the simulated read, and executor of the fetcher's background reads. A background
    read runs when the backend's first byte is due (`run_until`). Its bytes are available when the
    whole answer has arrived (`find_ready_ms`). Reads that are submitted in one step are concurrent,
    and take as long as the longest."""

    def __init__(self, backend: Backend, begin_ms: float, operation: str = "GetObject") -> None:
        """`operation`: name of the backend's read operation."""
        self._operation = operation
        backend.begin()
        self._backend = backend
        self._at_ms = begin_ms
        self._joined_ms = begin_ms  # the end of reads side by side
        self._is_background = False
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._ready: dict[object, list[tuple[range, float]]] = {}
        self.requests: Requests = Counter()
        self.read_bytes = 0

    # The clock of the fetcher

    def now_ms(self) -> int:
        return int(self._at_ms)

    def monotonic_ms(self) -> int:
        return int(self._at_ms)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self._at_ms += timeout_ms
        return event.is_set()

    # Driving

    def drive(self, steps: Steps[T], begin_ms: float) -> tuple[T, float]:
        """Run the steps of a get from the simulated time `begin_ms`. Return the result and the end
        time."""
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
        """Run one of the concurrent reads of a step, or schedule a background read."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        if getattr(fn, "__func__", None) is SegmentRead.read_blocking:
            begin_ms = self._at_ms
            run()
            end_ms, self._at_ms = self._at_ms, begin_ms
            self._joined_ms = max(self._joined_ms, end_ms)
        else:
            due_ms = self._at_ms + self._backend.draw_ms()
            heapq.heappush(self._pending, (due_ms, next(self._numbers), run))
        return future

    def run_until(self, time_ms: float) -> None:
        """Run the background reads that are due at or before the given time."""
        while self._pending and self._pending[0][0] <= time_ms:
            self._run_next()

    def _run_next(self) -> float:
        """Run the next background read, and return the time at which it was due."""
        due_ms, _, run = heapq.heappop(self._pending)
        before = self._at_ms, self._joined_ms, self._is_background
        self._at_ms = self._joined_ms = due_ms
        self._is_background = True
        try:
            run()
        finally:
            self._at_ms, self._joined_ms, self._is_background = before
        return due_ms

    def _wait(self, step: Wait[object]) -> object:
        flight = getattr(step.now, "__self__", None)
        while isinstance(flight, Flight) and not flight.has_landed and self._pending:
            self._at_ms = max(self._at_ms, self._run_next())
        return step.now()

    # Durations

    def pass_read(
        self, owner: object, file_type: FileSegmentType, messages: range, sizes: list[int]
    ) -> None:
        """Advance the time by a read with requests of these sizes."""
        if sizes:
            self.requests[self._operation, file_type.name] += len(sizes)
            self.read_bytes += sum(sizes)
            # A background read begins with its first answer.
            end_ms = self._backend.end_ms(sizes, self._at_ms, is_answered=self._is_background)
            self._at_ms = max(end_ms, self._joined_ms)
        if self._is_background and file_type is FileSegmentType.COMMIT_LOG:
            self._ready.setdefault(owner, []).append((messages, self._at_ms))

    def find_ready_ms(self, owner: object, messages: range, now_ms: float) -> float:
        """Return the time at which those of `messages` that are being read ahead have arrived, or
        `now_ms` if there are none."""
        ahead = [item for item in self._ready.pop(owner, ()) if item[1] > now_ms]
        if ahead:
            self._ready[owner] = ahead
        return max(
            (
                ready_ms
                for found, ready_ms in ahead
                if found.start < messages.stop and messages.start < found.stop
            ),
            default=now_ms,
        )
